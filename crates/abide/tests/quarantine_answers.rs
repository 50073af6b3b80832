//! Answers of children that arrive while no worker has the code prove nothing about a closure that
//! killed its process.

use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::{Lab, Machine};
use abide_core::{Address, ExecutionId, Namespace};
use abide_store::{Read, Target};

struct World {
    lab: Lab,
    machine: Mutex<Option<Machine>>,
    begun: Mutex<u32>,
}

type Shared = Arc<World>;

#[task]
async fn kid(_ctx: Ctx, n: u32) -> Result<u32> {
    Ok(n)
}

#[workflow]
async fn deadly(ctx: Ctx, count: u32) -> Result<usize> {
    let world = ctx.state::<Shared>();
    let kids = (0..count).map(|n| ctx.run(kid, n).lane("kids"));
    let kill = ctx.step("kill", || async {
        *world.begun.lock().unwrap() += 1;
        world.lab.sleep(secs(2)).await;
        let machine = world.machine.lock().unwrap().expect("a worker");
        world.lab.crash(machine);
        std::future::pending::<Result<()>>().await
    });
    let (kids, _) = futures_util::join!(futures_util::future::join_all(kids), kill);
    Ok(kids.len())
}

async fn takeover_count(lab: &Lab) -> u32 {
    let address = Address { namespace: Namespace::default(), id: ExecutionId::new("d").unwrap() };
    let read = Read { target: Target::Address(address), run: None, from: 0, limit: 0, with_inbox: false };
    lab.store().read(read).await.unwrap().unwrap().takeover_count
}

fn check(count: u32) {
    Lab::run(1, async |lab| {
        let world = Arc::new(World { lab, machine: Mutex::default(), begun: Mutex::default() });
        let parent = async || {
            let state = world.clone();
            let (machine, abide) =
                world.lab.worker_with(|builder| builder.state(state).session_ttl(secs(3))).await.unwrap();
            *world.machine.lock().unwrap() = Some(machine);
            abide
        };
        let first = parent().await;
        first.start(deadly, count).id("d").await.unwrap();
        world.lab.sleep(secs(10)).await;
        assert_eq!(*world.begun.lock().unwrap(), 1);
        // The children end while no worker has the code of their parent.
        let state = world.clone();
        let (_, _kids) = world
            .lab
            .worker_with(|builder| builder.state(state).lanes(["kids"]).session_ttl(secs(3)))
            .await
            .unwrap();
        world.lab.sleep(secs(20)).await;
        let _second = parent().await;
        while *world.begun.lock().unwrap() < 2 {
            world.lab.sleep(ms(10)).await;
        }
        world.lab.sleep(secs(1)).await;
        assert_eq!(takeover_count(&world.lab).await, 1, "the closure that killed is open again");
    });
}

#[test]
fn a_few_answers_prove_nothing() {
    check(50);
}

#[test]
fn many_answers_prove_nothing() {
    check(300);
}
