//! The record of who runs beside a suspect is durable before it is true.

use std::sync::atomic::{AtomicBool, Ordering};

use abide_core::Stand;
use abide_store::faults::Fault;

use super::*;

/// A store that meets each commit with a fault while it is down.
#[derive(Clone, Default)]
struct Outage(Arc<AtomicBool>);

impl Outage {
    fn of(&self, store: Arc<dyn Store>, fault: Fault) -> Arc<dyn Store> {
        let is_down = self.0.clone();
        FaultyStore::deciding(store, move |operation| {
            let is_met = operation == "commit" && is_down.load(Ordering::SeqCst);
            if is_met { fault } else { Fault::None }
        })
    }

    fn set(&self, is_down: bool) {
        self.0.store(is_down, Ordering::SeqCst);
    }
}

/// Kills the worker during an outage, ends the outage, and opens the next worker.
async fn die_in(outage: &Outage, world: &Shared) -> Abide {
    let machine = world.machine.lock().unwrap().unwrap();
    world.lab.crash(machine);
    outage.set(false);
    let abide = worker(world).await;
    world.lab.sleep(secs(30)).await;
    abide
}

/// Returns how many deaths the suspect "hangs" has caused, while it runs alone.
async fn own_death_count(world: &Shared) -> usize {
    let suspicion = world.snapshot("hangs").await.summary.suspicion.expect("it is a suspect");
    assert!(suspicion.is_alone(), "{suspicion:?}");
    suspicion.died_at.len()
}

/// Runs a test with commits that do not happen, and with commits that happen without an answer.
/// The number says how many deaths the suspect has caused after a death in that time.
fn on_outage<Fut: Future<Output = ()>>(
    expected: [(Fault, usize); 2],
    test: impl Fn(Shared, Outage, usize) -> Fut,
) {
    for (fault, death_count) in expected {
        for make in [memory, sqlite] {
            let outage = Outage::default();
            let faulty = |clock| outage.of(make(clock), fault);
            on(1, faulty, |world| test(world, outage.clone(), death_count));
        }
    }
}

/// If the code began before, its deaths would not be found beside the mark, and poison would kill
/// worker after worker.
#[test]
fn a_suspect_begins_when_it_is_recorded_that_it_is_alone() {
    let expected = [(Fault::Unavailable, 0), (Fault::Hold, 1)];
    on_outage(expected, async |world, outage, death_count| {
        let abide = worker(&world).await;
        abide.start(hangs, ()).id("hangs").await.unwrap();
        let _second = outlive(&world, 1).await;
        within(&world, secs(60), world.died.notified()).await;
        outage.set(true);
        let _third = worker(&world).await;
        wait_for_lease(&world, "hangs", 3).await;
        world.lab.sleep(secs(20)).await;
        assert_eq!(world.company("hangs").len(), 2, "its step began");
        let _fourth = die_in(&outage, &world).await;
        assert_eq!(own_death_count(&world).await, death_count);
        assert_eq!(world.company("hangs").len(), 3);
    });
}

/// If others came in before, a death that they caused would count as the suspect's own.
#[test]
fn others_come_in_when_it_is_recorded_that_the_suspect_is_no_longer_alone() {
    let expected = [(Fault::Unavailable, 1), (Fault::Hold, 0)];
    on_outage(expected, async |world, outage, death_count| {
        let abide = worker(&world).await;
        abide.start(hangs, ()).id("hangs").await.unwrap();
        let abide = outlive(&world, 2).await;
        wait_for_lease(&world, "hangs", 3).await;
        world.lab.sleep(secs(50)).await;
        let others = ids("other", 3);
        start_all(&abide, &others, (1, 10)).await;
        outage.set(true);
        // This is longer than the engine waits for a driver that does not commit.
        world.lab.sleep(secs(100)).await;
        assert_eq!(world.begun_count(), 3, "{:?}", world.order(3));
        let stand = world.snapshot("hangs").await.summary.suspicion.expect("it is a suspect").stand;
        assert_eq!(stand == Stand::Beside, death_count == 0, "{stand:?}");
        let abide = die_in(&outage, &world).await;
        finish(&world, abide, &others).await;
        assert_eq!(own_death_count(&world).await, death_count);
    });
}

/// That it ran alone under a holder that has left in good order says nothing about a later death,
/// before it has begun again.
#[test]
fn a_death_after_a_suspect_was_released_is_not_its_own() {
    let expected = [(Fault::Unavailable, 0), (Fault::Hold, 1)];
    on_outage(expected, async |world, outage, death_count| {
        let abide = worker(&world).await;
        abide.start(hangs, ()).id("hangs").await.unwrap();
        let third = outlive(&world, 2).await;
        wait_for_lease(&world, "hangs", 3).await;
        world.lab.sleep(secs(10)).await;
        assert_eq!(own_death_count(&world).await, 0);
        third.shutdown().await;
        outage.set(true);
        let _fourth = worker(&world).await;
        wait_for_lease(&world, "hangs", 4).await;
        world.lab.sleep(secs(20)).await;
        assert_eq!(world.company("hangs").len(), 3, "its step began");
        let _fifth = die_in(&outage, &world).await;
        assert_eq!(own_death_count(&world).await, death_count);
    });
}
