//! The effect of a message on the execution that it reaches, and the state that a park leaves.

use std::sync::Arc;
use std::time::Duration;

use abide_core::intake::{self, Found, Intake, Standing};
use abide_core::parking::park;
use abide_core::{
    Address, Block, Body, Bounds, By, Command, Descent, Epoch, Execution, ExecutionId, Failure, FailureKind,
    Kind, LeaseRow, Listens, Message, MessageId, Name, Namespace, Op, OpKind, Outcome, Parent, Payload,
    Refusal, Remedy, SessionId, Start, Status, StepRemedy, Summary, Timestamp, Version, Waiting, care,
};

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn message(id: &str, body: Body) -> Message {
    let to = Address { namespace: Namespace::default(), id: ExecutionId::new("order-1").expect("an id") };
    Message::new(MessageId::new(id), to, By("ann".into()), body)
}

fn signal(id: &str) -> Message {
    message(id, Body::Signal { name: name("note"), payload: Payload::from("1") })
}

fn pause() -> Message {
    message("pause", Body::Pause { reason: String::new() })
}

fn resume() -> Message {
    message("resume", Body::Resume)
}

fn cancel() -> Message {
    message("cancel", Body::Cancel { reason: String::new() })
}

fn answer(run: u32) -> Message {
    let op = Op { kind: OpKind::ChildResult, name: name("mail"), key: None, nth: 1 };
    message("done", Body::ChildDone { run, op, outcome: Outcome::Success(Payload::from("1")) })
}

fn start(input: &str) -> Start {
    Start::of(Kind::Workflow, name("order"), Payload::from(input))
}

/// An execution with its mail, as a store that has everything at hand would know it.
#[derive(Clone)]
struct Known {
    start: Arc<Start>,
    execution: Execution,
    summary: Summary,
    unread: Vec<Message>,
    read: Vec<MessageId>,
    /// Whether its state cannot be read.
    is_damaged: bool,
    /// Whether its senders do not hear of the damage.
    is_passed_over: bool,
}

impl Known {
    /// Returns a run that has recorded these commands.
    fn after(commands: &[Command]) -> Self {
        Self::begun(start("1"), commands)
    }

    fn begun(start: Start, commands: &[Command]) -> Self {
        let start = Arc::new(start);
        let (mut execution, _) = Execution::start(signal("s").to, Arc::clone(&start), at(0));
        for command in commands {
            let decision = execution.decide(command.clone(), at(1)).expect("it is possible");
            decision.record(&mut execution, at(1));
        }
        let summary = execution.summary_at_start(at(1));
        let (is_damaged, is_passed_over) = (false, false);
        Self { start, execution, summary, unread: Vec::new(), read: Vec::new(), is_damaged, is_passed_over }
    }

    fn unread(mut self, messages: &[Message]) -> Self {
        self.unread = messages.to_vec();
        self
    }
}

impl Found for Known {
    type Error = Refusal;

    fn standing(&self) -> Standing {
        let Summary { status, listens, .. } = self.summary;
        Standing { status, listens, run: Some(self.execution.run()) }
    }

    fn execution(&self) -> Result<&Execution, Refusal> {
        if self.is_damaged { Err(damage()) } else { Ok(&self.execution) }
    }

    fn first_start(&mut self) -> Result<Arc<Start>, Refusal> {
        Ok(Arc::clone(&self.start))
    }

    fn has_seen(&mut self, id: &MessageId) -> Result<bool, Refusal> {
        Ok(self.read.contains(id) || self.unread.iter().any(|message| message.id == *id))
    }

    fn unread_count(&mut self) -> Result<usize, Refusal> {
        Ok(self.unread.len())
    }

    fn orders(&mut self) -> Result<Vec<Message>, Refusal> {
        Ok(self.unread.iter().filter(|message| message.body.is_control()).cloned().collect())
    }

    fn pass_over(&self, error: Refusal) -> Result<(), Refusal> {
        if self.is_passed_over && error == damage() { Ok(()) } else { Err(error) }
    }
}

fn damage() -> Refusal {
    Refusal::Unsupported { what: "reading it".to_owned() }
}

fn admit(known: &Known, message: &Message) -> Result<Intake, Refusal> {
    let bounds = Bounds { inbox_count_max: 2, payload_bytes_max: 8, ..Bounds::default() };
    intake::admit(Some(&mut known.clone()), message, (&bounds, at(2)))
}

fn by() -> By {
    By("ann".into())
}

fn pausing() -> Command {
    Command::Pause { by: by(), reason: String::new() }
}

fn failing() -> Command {
    Command::Fail(Failure::new(FailureKind::Error, "no"))
}

fn completing() -> Command {
    Command::Complete { result: Payload::from("1"), unused: Vec::new() }
}

fn blocking() -> Command {
    Command::block(Block::Limit { reason: "full".to_owned() })
}

const DELIVERED: Result<Intake, Refusal> = Ok(Intake::Deliver { wakes: false });
const WOKEN: Result<Intake, Refusal> = Ok(Intake::Deliver { wakes: true });

#[test]
fn where_nothing_is_only_a_start_finds_its_place() {
    let bounds = Bounds::default();
    let admit = |message: &Message| intake::admit(None::<&mut Known>, message, (&bounds, at(2)));
    assert_eq!(admit(&message("m", Body::Start(start("1").into()))), Ok(Intake::Create));
    for message in [signal("s"), pause(), answer(1), message("m", Body::Retry)] {
        assert_eq!(admit(&message), Err(Refusal::Unknown { id: message.to.id.clone() }), "{message:?}");
    }
}

#[test]
fn start_attaches_to_what_began_the_same_way_and_to_nothing_else() {
    for commands in [vec![], vec![completing()], vec![failing()]] {
        let known = Known::after(&commands);
        let again = |input| admit(&known, &message("m", Body::Start(start(input).into())));
        assert_eq!(again("1"), Ok(Intake::Attach));
        assert!(matches!(again("2"), Err(Refusal::Conflict { .. })));
    }
}

#[test]
fn what_is_over_its_limit_is_refused_whatever_it_finds() {
    let large = message("s", Body::Signal { name: name("note"), payload: Payload::from("123456789") });
    let mut known = Known::after(&[]);
    known.read.push(large.id.clone());
    assert!(matches!(admit(&known, &large), Err(Refusal::TooLarge(_))));
}

#[test]
fn messages_wake_those_who_listen() {
    let delayed = Start { start_at: Some(at(500)), ..start("1") };
    let rows = [
        (Known::after(&[]), WOKEN, WOKEN),
        (Known::after(&[pausing()]), DELIVERED, WOKEN),
        (Known::after(&[blocking()]), DELIVERED, WOKEN),
        (Known::begun(delayed, &[]), DELIVERED, WOKEN),
    ];
    for (known, of_signal, of_cancel) in rows {
        assert_eq!(admit(&known, &signal("s")), of_signal, "{:?}", known.execution.phase());
        assert_eq!(admit(&known, &cancel()), of_cancel, "{:?}", known.execution.phase());
    }
    let mut resting = Known::after(&[]);
    resting.summary =
        resting.execution.summary(&[Waiting::Suspect { died_at: Vec::new(), until: Some(at(900)) }]);
    assert_eq!((admit(&resting, &signal("s")), admit(&resting, &cancel())), (DELIVERED, DELIVERED));
}

#[test]
fn what_has_ended_takes_only_a_retry_if_it_failed() {
    let retry = message("retry", Body::Retry);
    let finished = |status| Err(Refusal::Finished { status });
    let rows = [
        (Known::after(&[completing()]), Status::Completed, finished(Status::Completed)),
        (Known::after(&[failing()]), Status::Failed, Ok(Intake::Retry)),
        (
            Known::after(&[Command::Terminate { by: by(), reason: String::new() }]),
            Status::Cancelled,
            Ok(Intake::Retry),
        ),
    ];
    for (known, status, retried) in rows {
        for message in [signal("s"), pause(), cancel(), answer(1)] {
            assert_eq!(admit(&known, &message), finished(status), "{message:?}");
        }
        assert_eq!(admit(&known, &retry), retried);
    }
    // An execution whose input is lost does not run with another input, and no start matches it.
    let discarded = Start { discarded_at: Some(at(1)), ..start("null") };
    let terminate = Command::Terminate { by: by(), reason: String::new() };
    let discarded = Known::begun(discarded, std::slice::from_ref(&terminate));
    assert_eq!(admit(&discarded, &retry), Err(Refusal::Discarded));
    let again = message("start", Body::Start(start("null").into()));
    assert!(matches!(admit(&discarded, &again), Err(Refusal::Conflict { .. })));
    assert_eq!(admit(&Known::begun(start("null"), &[terminate]), &again), Ok(Intake::Attach));
    // A retry is taken at once or not at all: an order that has not been applied does not count.
    let terminate = message("t", Body::Terminate { reason: String::new() });
    assert_eq!(admit(&Known::after(&[]).unread(&[terminate]), &retry), Err(Refusal::NotEnded));
}

#[test]
fn answer_to_another_run_is_refused() {
    assert_eq!(admit(&Known::after(&[]), &answer(1)), WOKEN);
    assert_eq!(admit(&Known::after(&[]), &answer(2)), Err(Refusal::OtherRun { current: 1 }));
}

/// A parent sends its cancellation once more when it ends. For a child that is blocked in its
/// clean-up, that is no second cancellation, and the refusal says so.
#[test]
fn cancellation_that_a_child_has_heard_of_is_refused_for_what_it_is() {
    let id = |text| ExecutionId::new(text).expect("an id");
    let op = Op { kind: OpKind::ChildResult, name: name("mail"), key: None, nth: 1 };
    let begin = Start { parent: Some(Parent::new(id("mother"), 1, op, 2)), ..start("1") };
    let by = || By("ann".into());
    let block = Command::block(Block::Limit { reason: "full".to_owned() });
    let stuck = Known::begun(begin, &[Command::Cancel { by: by(), reason: String::new() }, block]);
    let of = |parent| {
        let descent = Descent { parent: id(parent), run: 1, before: 9, op: None };
        Message { descent: Some(descent.into()), ..cancel() }
    };
    assert_eq!(admit(&stuck, &of("mother")), Err(Refusal::Cancelling));
    assert_eq!(admit(&stuck, &of("other")), Err(Refusal::NotAChild { of: id("other") }));
    assert_eq!(admit(&stuck, &cancel()), WOKEN, "anybody else may end it by a second one");
}

/// The reader judges the message later. Nobody reads a retry, so it needs the state at once.
#[test]
fn what_cannot_be_judged_is_delivered_if_its_sender_is_not_told() {
    let damaged = Known { is_damaged: true, ..Known::after(&[]) };
    let foreign = Descent { parent: ExecutionId::new("other").expect("an id"), run: 1, before: 9, op: None };
    let foreign = Message { descent: Some(foreign.into()), ..cancel() };
    let retry = message("retry", Body::Retry);
    for order in [pause(), resume(), cancel(), foreign.clone(), retry.clone()] {
        assert_eq!(admit(&damaged, &order), Err(damage()), "{order:?}");
    }
    let damaged = Known { is_passed_over: true, ..damaged };
    for order in [pause(), resume(), cancel(), foreign, signal("s"), answer(1)] {
        assert_eq!(admit(&damaged, &order), WOKEN, "{order:?}");
    }
    assert_eq!(admit(&damaged, &retry), Err(damage()));
    let full = damaged.clone().unread(&[signal("s1"), signal("s2")]);
    assert!(
        matches!(admit(&full, &signal("s3")), Err(Refusal::TooLarge(_))),
        "it has no more room than others"
    );
    assert_eq!(admit(&full, &signal("s2")), Ok(Intake::Duplicate));
}

#[test]
fn order_is_judged_by_those_that_lie_unread_before_it() {
    let running = Known::after(&[]);
    assert_eq!(admit(&running, &resume()), Err(Refusal::NotPaused));
    assert_eq!(admit(&running.clone().unread(&[pause()]), &resume()), WOKEN);
    assert_eq!(admit(&running.unread(&[signal("s")]), &resume()), Err(Refusal::NotPaused));
}

#[test]
fn decision_about_a_step_is_refused_behind_an_unblock_that_is_unread() {
    let op = Op { kind: OpKind::Step, name: name("charge"), key: None, nth: 1 };
    let reason = Block::Unrecordable { op: op.clone(), reason: "too large".to_owned() };
    let blocked = Known::after(&[Command::block(reason)]);
    let decide = |id: &str, step| message(id, Body::Unblock { step });
    let remedy = StepRemedy { step: "charge".to_owned(), remedy: Remedy::Edit(Payload::from("1")) };
    let edit = |id: &str| decide(id, Some(remedy.clone()));
    let undecided = Refusal::Undecided { id: ExecutionId::new("order-1").expect("an id"), op };
    assert_eq!(admit(&blocked, &edit("first")), WOKEN);
    assert_eq!(admit(&blocked, &decide("plain", None)), Err(undecided));
    let decided = blocked.unread(&[signal("s"), edit("first")]);
    for again in [edit("second"), decide("plain", None)] {
        assert_eq!(admit(&decided, &again), Err(Refusal::UnblockUnread));
    }
    assert_eq!(admit(&decided, &edit("first")), Ok(Intake::Duplicate));
}

/// Returns orders of a parent that has no such child. They are in the inbox because the state could
/// not be read when they arrived.
fn foreign_orders() -> [Message; 4] {
    let parent = ExecutionId::new("other").expect("an id");
    let descent = Descent { parent, run: 1, before: 9, op: None };
    let inherit = message("inherit", Body::Inherit { number: 8, pause: Some(String::new()) });
    let terminate = message("terminate", Body::Terminate { reason: String::new() });
    [pause(), inherit, cancel(), terminate]
        .map(|order| Message { descent: Some(descent.clone().into()), ..order })
}

#[test]
fn order_is_not_judged_by_those_for_somebody_elses_children() {
    for foreign in foreign_orders() {
        let running = Known::after(&[]).unread(std::slice::from_ref(&foreign));
        assert_eq!(admit(&running, &resume()), Err(Refusal::NotPaused), "{foreign:?}");
    }
}

#[test]
fn caretaker_has_nothing_to_do_with_orders_for_somebody_elses_children() {
    let execution = Known::after(&[]).execution;
    for session in [None, Some(SessionId(1))] {
        let lease = LeaseRow { session, epoch: Epoch(1), version: Version(1) };
        let look = |order: &Message| care::look(&execution, (&lease, None), [order], at(9), Duration::ZERO);
        for foreign in foreign_orders() {
            assert_eq!(look(&foreign), care::Look::Later(None), "{foreign:?} {session:?}");
        }
        let own = message("terminate", Body::Terminate { reason: String::new() });
        assert_eq!(look(&own), care::Look::Take, "{session:?}");
    }
}

#[test]
fn what_was_taken_before_is_no_news_whatever_became_of_its_target() {
    for commands in [vec![completing()], vec![failing()]] {
        let mut known = Known::after(&commands);
        known.read.push(MessageId::new("s"));
        assert_eq!(admit(&known, &signal("s")), Ok(Intake::Duplicate));
    }
    let full = Known::after(&[]).unread(&[signal("s1"), signal("s2")]);
    assert_eq!(admit(&full, &signal("s2")), Ok(Intake::Duplicate));
}

#[test]
fn full_inbox_has_room_for_orders_and_answers() {
    let full = Known::after(&[]).unread(&[signal("s1"), signal("s2")]);
    assert!(matches!(admit(&full, &signal("s3")), Err(Refusal::TooLarge(_))));
    assert_eq!((admit(&full, &cancel()), admit(&full, &answer(1))), (WOKEN, WOKEN));
}

#[test]
fn park_is_ready_for_what_was_not_seen_and_is_listened_to() {
    let everything = Known::after(&[]).summary;
    let control = Known::after(&[pausing()]).summary;
    let nothing = Summary { listens: Listens::Nothing, ..everything.clone() };
    let rows: [(&Summary, &[Message], bool); 9] = [
        (&everything, &[], false),
        (&everything, &[signal("s")], true),
        (&everything, &[cancel()], true),
        (&control, &[], false),
        (&control, &[signal("s")], false),
        (&control, &[signal("s"), cancel()], true),
        (&nothing, &[], false),
        (&nothing, &[signal("s")], false),
        (&nothing, &[cancel()], false),
    ];
    for (summary, unseen, is_ready) in rows {
        let parked = park(summary, unseen.iter().map(|message| Some(message.body.sort())), at(7));
        assert_eq!(parked.is_ready, is_ready, "{:?} {unseen:?}", summary.listens);
        // A caretaker is needed only for messages that the holder has not seen.
        let care_at = (!unseen.is_empty()).then(|| at(7).after(care::ORDER_GRACE));
        assert_eq!(parked.care_at, care_at, "{:?} {unseen:?}", summary.listens);
    }
    assert!(park(&control, [None], at(7)).is_ready, "what cannot be read is worth a look");
}
