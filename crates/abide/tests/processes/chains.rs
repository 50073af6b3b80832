//! A process that is killed at random moments loses no run of a chain and begins none twice.

use std::collections::BTreeMap;

use abide::prelude::*;

use crate::clock::{Chance, pause};
use crate::effects;
use crate::flows::chain;
use crate::in_turn;
use crate::kills::{check_silence, check_steps};
use crate::look::{self, Look};
use crate::process::Process;
use crate::roles::Role;

const KILL_COUNT: u32 = 25;
const CHAIN_COUNT: u64 = 4;
const RUN_COUNT: u32 = 400;
/// A process lives for less than this.
const LIFE_MS_MAX: u64 = 150;

#[test]
fn a_process_that_is_killed_loses_no_run_and_begins_none_twice() {
    in_turn(async {
        let folder = tempfile::tempdir().expect("a folder");
        let mut chance = Chance::seeded(7);
        let client = Abide::client(&look::url(folder.path())).await.expect("a client");
        let ids: Vec<_> = (0..CHAIN_COUNT).map(|n| format!("chain-{n}")).collect();
        for id in &ids {
            client.start(chain, u64::from(RUN_COUNT) - 1).id(id).await.expect("a start");
        }
        let (mut look, mut seen) = (Look::at(folder.path()), BTreeMap::new());
        let mut open_count = 0;
        for generation in 0..KILL_COUNT {
            look.again().await;
            check_silence(&look, folder.path(), generation, &mut seen);
            let role = Role { generation, ..Role::worker(folder.path()) };
            let mut process = Process::spawn_ready(&role).await;
            pause(ms(chance.below(LIFE_MS_MAX))).await;
            process.kill();
            look.again().await;
            open_count += u32::from(look.ends().values().any(|ends| ends.len() < RUN_COUNT as usize));
        }
        assert!(open_count > KILL_COUNT / 3, "only {open_count} kills hit something");
        let _last =
            Process::spawn_ready(&Role { generation: KILL_COUNT, ..Role::worker(folder.path()) }).await;
        for id in &ids {
            assert_eq!(client.handle::<u32>(id).result().await.expect("a result"), RUN_COUNT, "{id}");
        }
        look.again().await;
        check_silence(&look, folder.path(), KILL_COUNT + 1, &mut seen);
        check_steps(&look, &effects::read(folder.path()));
        assert_eq!(look.recorded().len(), ids.len() * RUN_COUNT as usize, "one record a run");
        assert!(look.ends().values().all(|ends| ends.len() == RUN_COUNT as usize), "one end a run");
        assert_eq!(look.problems(), Vec::<String>::new());
    });
}
