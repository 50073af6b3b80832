//! Accepting another input, beside a result that could not be recorded.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use abide::prelude::*;
use abide::testing::Lab;
use abide_core::Bounds;
use abide_store::memory::MemoryStore;
use tokio::sync::Semaphore;

const BYTES_MAX: usize = 100;

struct World {
    input: AtomicU32,
    length: AtomicUsize,
    /// Whether the code does something before the charge that no earlier code did.
    is_late: AtomicBool,
    gate: Semaphore,
    ran: Mutex<Vec<String>>,
}

type Shared = Arc<World>;

fn world() -> Shared {
    Arc::new(World {
        input: AtomicU32::new(1),
        length: AtomicUsize::new(BYTES_MAX),
        is_late: AtomicBool::new(false),
        gate: Semaphore::new(0),
        ran: Mutex::default(),
    })
}

/// A charge with a declared input, whose receipt may be too large to be recorded.
#[workflow]
async fn charges(ctx: Ctx) -> Result<String> {
    let world = ctx.state::<Shared>();
    if world.is_late.load(Ordering::Relaxed) {
        ctx.step("check", || async { Ok(()) }).await?;
    }
    let input = world.input.load(Ordering::Relaxed);
    ctx.step("charge", || async {
        world.gate.acquire().await?.forget();
        world.ran.lock().unwrap().push(format!("charge {input}"));
        Ok("x".repeat(world.length.load(Ordering::Relaxed)))
    })
    .input(&input)
    .await
}

fn small(clock: Arc<dyn abide_store::Clock>) -> Arc<dyn abide_store::Store> {
    MemoryStore::new(clock, Bounds { payload_bytes_max: BYTES_MAX, ..Bounds::default() })
}

async fn worker(lab: &Lab, world: &Shared) -> (abide::testing::Machine, Abide) {
    let options = |builder: abide::Builder| {
        let builder = builder.workflow(pays_first).state(world.clone());
        builder.payload_bytes_max(BYTES_MAX).session_ttl(secs(3))
    };
    lab.worker_with(options).await.unwrap()
}

/// The charge has happened, and its receipt could not be recorded. Accepting the outcome for
/// another input is not a decision to charge once more.
#[test]
fn accepting_another_input_does_not_run_again_what_could_not_be_recorded() {
    Lab::run_on(1, small, |lab| async move {
        let world = world();
        let worker = || worker(&lab, &world);
        let (machine, abide) = worker().await;
        let handle = abide.start(charges, ()).id("one").await.unwrap();
        lab.sleep(secs(1)).await;
        handle.pause().await.unwrap();
        lab.sleep(secs(1)).await;
        world.gate.add_permits(1);
        lab.sleep(secs(2)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Paused);
        assert_eq!(world.ran.lock().unwrap().join(", "), "charge 1");
        lab.crash(machine);
        world.input.store(2, Ordering::Relaxed);
        world.length.store(3, Ordering::Relaxed);
        world.gate.add_permits(10);
        let (_, abide) = worker().await;
        let handle = abide.handle::<String>("one");
        handle.resume().await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        handle.unblock().accept("charge").await.unwrap();
        lab.sleep(secs(10)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked, "the receipt is still lost");
        handle.unblock().edit("charge", "ok").await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "ok");
        assert_eq!(world.ran.lock().unwrap().join(", "), "charge 1", "nobody has asked for a second charge");
    });
}

/// An operator has let the charge run again: its lost receipt is no outcome any longer, and its
/// input binds no later code.
#[test]
fn the_input_of_a_lost_result_that_runs_again_binds_nobody() {
    Lab::run_on(1, small, |lab| async move {
        let world = world();
        let worker = || worker(&lab, &world);
        let (machine, abide) = worker().await;
        let handle = abide.start(charges, ()).id("one").await.unwrap();
        world.gate.add_permits(1);
        lab.sleep(secs(1)).await;
        assert_eq!(handle.status().await.unwrap(), Status::Blocked);
        handle.unblock().rerun("charge").await.unwrap();
        lab.sleep(secs(1)).await;
        lab.crash(machine);
        world.input.store(2, Ordering::Relaxed);
        world.length.store(3, Ordering::Relaxed);
        world.gate.add_permits(10);
        let (_, abide) = worker().await;
        assert_eq!(abide.handle::<String>("one").result().await.unwrap(), "xxx");
        assert_eq!(world.ran.lock().unwrap().join(", "), "charge 1, charge 2");
    });
}

#[task]
async fn pay(ctx: Ctx, to: u32) -> Result<u32> {
    ctx.state::<Shared>().ran.lock().unwrap().push(format!("pay {to}"));
    Ok(to)
}

async fn receipt(ctx: &Ctx) -> Result<String> {
    let world = ctx.state::<Shared>();
    let length = world.length.load(Ordering::Relaxed);
    ctx.step("receipt", || async move { Ok("x".repeat(length)) }).await
}

/// Pays, and then writes a receipt that may be too large.
#[workflow(name = "pays")]
async fn pays_first(ctx: Ctx) -> Result<String> {
    let input = ctx.state::<Shared>().input.load(Ordering::Relaxed);
    let paid = ctx.run(pay, input).await?;
    ctx.recv::<()>("write").await?;
    let receipt = receipt(&ctx).await?;
    ctx.recv::<()>("go").await?;
    Ok(format!("{paid} {receipt}"))
}

/// Asks for the receipt first, as the next deploy does.
#[workflow(name = "pays")]
async fn pays_last(ctx: Ctx) -> Result<String> {
    let input = ctx.state::<Shared>().input.load(Ordering::Relaxed);
    let receipt = receipt(&ctx).await?;
    let paid = ctx.run(pay, input).await?;
    ctx.recv::<()>("write").await?;
    ctx.recv::<()>("go").await?;
    Ok(format!("{paid} {receipt}"))
}

struct Deploys<'a> {
    lab: &'a Lab,
    world: Shared,
    machine: Option<abide::testing::Machine>,
    build_count: u32,
}

impl Deploys<'_> {
    /// Replaces the worker by one with this code, which has this input for the payment.
    async fn deploy(
        &mut self,
        code: impl abide::Workflow<Input = (), Output = String>,
        input: u32,
    ) -> Handle<String> {
        if let Some(machine) = self.machine.take() {
            self.lab.crash(machine);
        }
        self.world.input.store(input, Ordering::Relaxed);
        let state = self.world.clone();
        let options = |builder: abide::Builder| {
            let builder = builder.state(state).payload_bytes_max(BYTES_MAX).session_ttl(secs(3));
            builder.workflow(code).task(pay).build(&format!("build-{}", self.build_count))
        };
        let (machine, abide) = self.lab.worker_with(options).await.unwrap();
        self.machine = Some(machine);
        self.build_count += 1;
        if self.build_count == 1 {
            abide.start_named::<_, String>("one", "pays", &()).await.unwrap();
        }
        let handle = abide.handle("one");
        // A message that nobody reads has the code called.
        handle.signal("look", &()).await.unwrap();
        self.lab.sleep(secs(10)).await;
        handle
    }

    async fn expect(&self, handle: &Handle<String>, status: Status) {
        self.lab.sleep(secs(10)).await;
        assert_eq!(handle.status().await.unwrap(), status, "{}", handle.why().await.unwrap());
    }

    /// Starts the workflow, deploys another input for the payment, and accepts that.
    async fn accepted(lab: &Lab) -> (Deploys<'_>, Handle<String>) {
        let mut deploys = Deploys { lab, world: world(), machine: None, build_count: 0 };
        deploys.world.length.store(BYTES_MAX, Ordering::Relaxed);
        deploys.deploy(pays_first, 1).await;
        let handle = deploys.deploy(pays_first, 2).await;
        deploys.expect(&handle, Status::Blocked).await;
        handle.unblock().accept("pay").await.unwrap();
        deploys.expect(&handle, Status::Waiting).await;
        (deploys, handle)
    }
}

#[test]
fn an_accept_is_remembered_by_code_that_asks_for_the_child_behind_an_edited_step() {
    Lab::run_on(1, small, |lab| async move {
        let (mut deploys, handle) = Deploys::accepted(&lab).await;
        handle.signal("write", &()).await.unwrap();
        deploys.expect(&handle, Status::Blocked).await;
        handle.unblock().edit("receipt", "ok").await.unwrap();
        deploys.expect(&handle, Status::Waiting).await;
        let handle = deploys.deploy(pays_last, 2).await;
        deploys.expect(&handle, Status::Waiting).await;
        handle.signal("go", &()).await.unwrap();
        assert_eq!(handle.result().await.unwrap(), "1 ok");
        assert_eq!(deploys.world.ran.lock().unwrap().join(", "), "pay 1");
    });
}

#[test]
fn an_accept_is_for_one_input() {
    Lab::run_on(1, small, |lab| async move {
        let (mut deploys, _) = Deploys::accepted(&lab).await;
        let handle = deploys.deploy(pays_first, 3).await;
        deploys.expect(&handle, Status::Blocked).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains(r#"child "pay" was recorded with input 1, the code has 3"#), "{why}");
        let handle = deploys.deploy(pays_first, 2).await;
        deploys.expect(&handle, Status::Waiting).await;
    });
}

#[test]
fn a_record_that_the_code_asks_for_late_is_compared_by_its_input() {
    Lab::run_on(1, small, |lab| async move {
        let (mut deploys, handle) = Deploys::accepted(&lab).await;
        deploys.world.length.store(2, Ordering::Relaxed);
        handle.signal("write", &()).await.unwrap();
        deploys.expect(&handle, Status::Waiting).await;
        let handle = deploys.deploy(pays_last, 3).await;
        deploys.expect(&handle, Status::Blocked).await;
        let why = handle.why().await.unwrap();
        assert!(why.contains(r#"child "pay" was recorded with input 1, the code has 3"#), "{why}");
        let handle = deploys.deploy(pays_last, 2).await;
        deploys.expect(&handle, Status::Waiting).await;
        assert_eq!(deploys.world.ran.lock().unwrap().join(", "), "pay 1");
    });
}

/// An operator has supplied the receipt that was lost. It is the receipt of the recorded input,
/// whether newer code asks for the charge at once or later.
#[test]
fn a_supplied_result_is_for_the_recorded_input() {
    for is_late in [false, true] {
        Lab::run_on(1, small, |lab| async move {
            let world = world();
            let (machine, abide) = worker(&lab, &world).await;
            abide.start(charges, ()).id("one").await.unwrap();
            world.gate.add_permits(10);
            lab.sleep(secs(1)).await;
            lab.crash(machine);
            let elsewhere = |builder: abide::Builder| builder.workflow(pays_first).lanes(["other"]);
            let (_, elsewhere) = lab.worker_with(elsewhere).await.unwrap();
            elsewhere.handle::<String>("one").unblock().edit("charge", "ok").await.unwrap();
            world.input.store(2, Ordering::Relaxed);
            world.is_late.store(is_late, Ordering::Relaxed);
            let (_, abide) = worker(&lab, &world).await;
            lab.sleep(secs(10)).await;
            let handle = abide.handle::<String>("one");
            let why = handle.why().await.unwrap();
            assert_eq!(handle.status().await.unwrap(), Status::Blocked, "{is_late} {why}");
            assert!(why.contains(r#"step "charge" was recorded with input 1, the code has 2"#), "{why}");
            handle.unblock().accept("charge").await.unwrap();
            assert_eq!(handle.result().await.unwrap(), "ok");
            assert_eq!(world.ran.lock().unwrap().join(", "), "charge 1");
        });
    }
}

async fn charge(ctx: &Ctx) -> Result<u32> {
    let input = ctx.state::<Shared>().input.load(Ordering::Relaxed);
    ctx.step("charge", || async move { Ok(input) }).input(&input).await
}

/// A step that lasts until the test lets it end.
async fn slow(ctx: &Ctx) -> Result<u32> {
    let world = ctx.state::<Shared>();
    ctx.step("slow", || async {
        world.gate.acquire().await?.forget();
        Ok(7)
    })
    .await
}

#[workflow(name = "pays")]
async fn charges_at_once(ctx: Ctx) -> Result<String> {
    charge(&ctx).await?;
    ctx.recv("go").await
}

/// Asks for the charge while another step runs.
#[workflow(name = "pays")]
async fn charges_beside(ctx: Ctx) -> Result<String> {
    let charged = async {
        ctx.step("quick", || async { Ok(()) }).await?;
        charge(&ctx).await
    };
    let (slow, charged) = tokio::join!(slow(&ctx), charged);
    Ok(format!("{} {}", slow?, charged?))
}

/// Asks for the charge behind that step.
#[workflow(name = "pays")]
async fn charges_behind(ctx: Ctx) -> Result<String> {
    let slow = slow(&ctx).await?;
    Ok(format!("{slow} {}", charge(&ctx).await?))
}

/// The last result before the decision was recorded while the execution was blocked. When the code
/// has it and asks for the charge, the decision about the charge is the very next entry.
#[test]
fn an_accept_directly_behind_the_last_delivered_entry_is_found() {
    Lab::run_on(1, small, |lab| async move {
        let mut deploys = Deploys { lab: &lab, world: world(), machine: None, build_count: 0 };
        deploys.deploy(charges_at_once, 1).await;
        let handle = deploys.deploy(charges_beside, 2).await;
        deploys.expect(&handle, Status::Blocked).await;
        deploys.world.gate.add_permits(1);
        deploys.expect(&handle, Status::Blocked).await;
        lab.crash(deploys.machine.take().unwrap());
        let (_, elsewhere) =
            lab.worker_with(|builder| builder.workflow(charges_behind).lanes(["other"])).await.unwrap();
        elsewhere.handle::<String>("one").unblock().accept("charge").await.unwrap();
        let handle = deploys.deploy(charges_behind, 2).await;
        deploys.expect(&handle, Status::Completed).await;
        assert_eq!(handle.result().await.unwrap(), "7 1");
    });
}
