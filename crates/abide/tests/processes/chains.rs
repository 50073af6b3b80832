//! A process that is killed at random moments loses no run of a chain and begins none twice.

use std::collections::BTreeMap;

use crate::clock::{Chance, until, until_much, within};
use crate::effects;
use crate::flows::chain;
use crate::in_turn;
use crate::kills::{check_silence, check_steps};
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::Role;

const KILL_COUNT: u32 = 25;
const CHAIN_COUNT: u64 = 4;
const RUN_COUNT: u32 = 1_200;
/// The most bytes that a process writes to the file of effects in its life: some dozens of runs,
/// however fast the machine is.
const LIFE_BYTES_MAX: u64 = 10_000;

#[test]
fn a_process_that_is_killed_loses_no_run_and_begins_none_twice() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut chance = Chance::seeded(7);
        let client = look::client(folder.path()).await;
        let ids: Vec<_> = (0..CHAIN_COUNT).map(|n| format!("chain-{n}")).collect();
        for id in &ids {
            client.start(chain, u64::from(RUN_COUNT) - 1).id(id).await.expect("a start");
        }
        let (mut look, mut seen) = (Look::at(folder.path()), BTreeMap::new());
        let mut open_count = 0;
        for generation in 0..KILL_COUNT {
            look.again().await;
            check_silence(&look, folder.path(), generation, &mut seen);
            let first = effects::byte_count(folder.path());
            let last = first + chance.below(LIFE_BYTES_MAX);
            // If the parent does not look for a while, the steps wait: no process can do all the
            // work.
            let effect_bytes_max = Some(first + 2 * LIFE_BYTES_MAX);
            let role = Role { generation, effect_bytes_max, ..Role::worker(folder.path()) };
            let mut process = Process::spawn_ready(&role).await;
            until("runs end", async || (effects::byte_count(folder.path()) > last).then_some(())).await;
            process.kill();
            look.again().await;
            open_count += u32::from(look.ends().values().any(|ends| ends.len() < RUN_COUNT as usize));
        }
        assert_eq!(open_count, KILL_COUNT, "a kill hit nothing");
        let _last =
            Process::spawn_ready(&Role { generation: KILL_COUNT, ..Role::worker(folder.path()) }).await;
        for id in &ids {
            let handle = client.handle::<u32>(id);
            until_much("a chain ends", async || {
                handle.status().await.expect("a status").is_terminal().then_some(())
            })
            .await;
            assert_eq!(within("a result", handle.result()).await.expect("a result"), RUN_COUNT, "{id}");
        }
        look.again().await;
        check_silence(&look, folder.path(), KILL_COUNT + 1, &mut seen);
        check_steps(&look, &effects::read(folder.path()));
        assert_eq!(look.recorded().len(), ids.len() * RUN_COUNT as usize, "one record a run");
        assert!(look.ends().values().all(|ends| ends.len() == RUN_COUNT as usize), "one end a run");
        assert_eq!(look.problems(), Vec::<String>::new());
    });
}
