//! Runs a program on a host: the engine's `Ctx`, or the oracle's model of it. The meaning of a
//! program is written once, so the two can differ only in the behaviour of the host.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join, join_all};
use futures_util::stream::FuturesUnordered;

use crate::program::{Child, Expr, Program, Step, Transact, mix, mixed};

/// The host that a program runs on.
pub(crate) trait Host: Sync {
    /// The error of an operation.
    type Error: Trouble;

    fn step<'a>(&'a self, step: &'a Step, borrowed: &'a u64) -> Outcome<'a, Self>;
    fn blocking<'a>(&'a self, step: &'a Step) -> Outcome<'a, Self>;
    fn transact<'a>(&'a self, transact: &'a Transact) -> Outcome<'a, Self>;
    fn sleep<'a>(&'a self, ms: u64, name: Option<&'a str>) -> Outcome<'a, Self>;
    fn sleep_until(&self, micros: u64) -> Outcome<'_, Self>;
    fn receive<'a>(&'a self, name: &'a str, timeout_ms: Option<u64>, is_text: bool) -> Outcome<'a, Self>;
    fn run<'a>(&'a self, child: &'a Child) -> Outcome<'a, Self>;
    fn start<'a>(&'a self, child: &'a Child) -> BoxFuture<'a, Result<Started<'a, Self>, Self::Error>>;
    fn shield<'a>(&'a self, cleanup: Outcome<'a, Self>) -> Outcome<'a, Self>;
    fn continue_as_new(&self, next: Program) -> Outcome<'_, Self>;
    fn now_micros(&self) -> u64;
    fn random(&self) -> u64;
    fn uuid(&self) -> u64;
    fn patched(&self, change: &str) -> bool;
    fn failure(&self, node: u32) -> Self::Error;
}

/// A future number or error.
pub(crate) type Outcome<'a, H> = BoxFuture<'a, Result<u64, <H as Host>::Error>>;

/// Waits for the result of a child that was started. If it is not called, the child is left alone.
pub(crate) type Started<'a, H> = Box<dyn FnOnce() -> Outcome<'a, H> + Send + 'a>;

/// The properties of an error that a program can see.
pub(crate) trait Trouble: Send {
    fn is_cancelled(&self) -> bool;
    /// Returns a number for the kind of error.
    fn number(&self) -> u64;
}

/// Runs a program to its end.
pub(crate) async fn run<H: Host>(host: &H, program: &Program) -> Result<u64, H::Error> {
    let mut held = program.held.as_ref().map(|held| eval(host, held, &program.carry));
    let mut seen = 0;
    let body = beside::<H>(eval(host, &program.body, &program.carry), (&mut held, &mut seen)).await?;
    let value = mix(mix(program.carry, body), seen);
    match &program.next {
        None => Ok(value),
        Some(next) => {
            let next = host.continue_as_new(Program { carry: value, ..(**next).clone() });
            beside::<H>(next, (&mut held, &mut seen)).await
        }
    }
}

/// Runs `main` while `held` goes on. If `held` ends first, `seen` receives its value.
async fn beside<H: Host>(
    mut main: Outcome<'_, H>,
    (held, seen): (&mut Option<Outcome<'_, H>>, &mut u64),
) -> Result<u64, H::Error> {
    poll_fn(|cx| {
        if let Poll::Ready(result) = main.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        if let Some(Poll::Ready(result)) = held.as_mut().map(|held| held.as_mut().poll(cx)) {
            *held = None;
            *seen = result.unwrap_or_else(|error| error.number());
        }
        Poll::Pending
    })
    .await
}

/// Evaluates one expression. `borrowed` is a local variable of the caller, which closures of steps
/// borrow.
fn eval<'a, H: Host>(host: &'a H, expr: &'a Expr, borrowed: &'a u64) -> Outcome<'a, H> {
    match expr {
        Expr::Value(value) => Box::pin(async move { Ok(*value) }),
        Expr::Step(step) => host.step(step, borrowed),
        Expr::Blocking(step) => host.blocking(step),
        Expr::Transact(transact) => host.transact(transact),
        Expr::Sleep { ms, name } => host.sleep(*ms, name.as_deref()),
        // Read the time when the operation is evaluated.
        Expr::SleepUntil { ms } => {
            Box::pin(async move { host.sleep_until(host.now_micros() + ms * 1_000).await })
        }
        Expr::Receive { name, timeout_ms, is_text } => host.receive(name, *timeout_ms, *is_text),
        Expr::Run(child) => host.run(child),
        Expr::Start { child, meanwhile, is_awaited } => Box::pin(async move {
            let started = host.start(child).await?;
            let value = eval(host, meanwhile, borrowed).await?;
            if *is_awaited { Ok(mix(value, started().await?)) } else { Ok(value) }
        }),
        Expr::Random(_) => Box::pin(async move { Ok(host.random()) }),
        Expr::Uuid(_) => Box::pin(async move { Ok(host.uuid()) }),
        Expr::Now => Box::pin(async move { Ok(host.now_micros()) }),
        Expr::Fail { node } => Box::pin(async move { Err(host.failure(*node)) }),
        Expr::Patched { change, body } => {
            Box::pin(
                async move { if host.patched(change) { eval(host, body, borrowed).await } else { Ok(0) } },
            )
        }
        Expr::Shield(cleanup) => host.shield(eval(host, cleanup, borrowed)),
        Expr::Sequence(parts) => Box::pin(sequence(host, parts)),
        Expr::Join(parts) => Box::pin(all(host, parts, borrowed)),
        Expr::Select(parts) => Box::pin(first(host, parts, borrowed)),
        Expr::Unordered(parts) => Box::pin(unordered(host, parts, borrowed)),
        Expr::Catch { body, otherwise, is_stubborn } => Box::pin(async move {
            let error = match eval(host, body, borrowed).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let handled = mix(error.number(), eval(host, otherwise, borrowed).await?);
            if error.is_cancelled() && !is_stubborn { Err(error) } else { Ok(handled) }
        }),
    }
}

async fn sequence<H: Host>(host: &H, parts: &[Expr]) -> Result<u64, H::Error> {
    let mut sum = 1;
    for part in parts {
        let before = sum;
        sum = mix(sum, eval(host, part, &before).await?);
    }
    Ok(sum)
}

async fn all<H: Host>(host: &H, parts: &[Expr], borrowed: &u64) -> Result<u64, H::Error> {
    let results = match parts {
        [one, two] => {
            let (one, two) = join(eval(host, one, borrowed), eval(host, two, borrowed)).await;
            vec![one, two]
        }
        parts => join_all(parts.iter().map(|part| eval(host, part, borrowed))).await,
    };
    Ok(mixed(results.into_iter().collect::<Result<Vec<_>, _>>()?))
}

async fn first<H: Host>(host: &H, parts: &[Expr], borrowed: &u64) -> Result<u64, H::Error> {
    let part = |index: usize| eval(host, &parts[index], borrowed);
    let (index, result) = match parts.len() {
        0 => (0, Ok(0)),
        1 => (0, part(0).await),
        2 => abide::select! { one = part(0) => (0, one), two = part(1) => (1, two) },
        _ => {
            abide::select! { one = part(0) => (0, one), two = part(1) => (1, two), three = part(2) => (2, three) }
        }
    };
    Ok(mix(index, result?))
}

async fn unordered<H: Host>(host: &H, parts: &[Expr], borrowed: &u64) -> Result<u64, H::Error> {
    let indexed = parts.iter().enumerate().map(|(index, part)| async move {
        eval(host, part, borrowed).await.map(|value| mix(index as u64, value))
    });
    let mut running: FuturesUnordered<_> = indexed.collect();
    let mut sum = 1;
    while let Some(value) = running.next().await {
        sum = mix(sum, value?);
    }
    Ok(sum)
}
