//! Bounds on the texts and values of people and programs.
//!
//! A payload over its limit is refused, or blocks its execution: half of a value is no value. A
//! text over its bound is cut, visibly, because its beginning still says most of it, and because an
//! execution must be able to fail with any error of its code. A text or value reaches a journal
//! only through [`Command::bounded`].

use crate::planted::{Bug, planted};
use crate::{
    Block, Body, Bounds, By, Command, Failure, Message, Outcome, RejectedSignal, StepRecord, StepRemedy,
    TooLarge, Unrecordable, text,
};

impl Bounds {
    /// The longest reason, or text about an obstacle, in bytes. Also the longest name of its
    /// author.
    pub const REASON_BYTES_MAX: usize = 1_024;

    /// Returns how many bytes of an error are kept: never more than of a payload.
    fn failure_bytes(&self) -> usize {
        self.failure_bytes_max.min(self.payload_bytes_max)
    }
}

impl Command {
    /// Returns the same command with every text in it cut to its bound.
    pub fn bounded(self, bounds: &Bounds) -> Self {
        match self {
            Self::RecordStep(StepRecord { op, outcome, attempt, input }) => {
                let outcome = outcome.bounded(bounds);
                Self::RecordStep(StepRecord { op, outcome, attempt, input })
            }
            Self::FailAttempt { op, attempt, failure, retry_at, first_at } => {
                let failure = failure.bounded(bounds);
                Self::FailAttempt { op, attempt, failure, retry_at, first_at }
            }
            Self::FinishChild { op, outcome } => Self::FinishChild { op, outcome: outcome.bounded(bounds) },
            Self::Fail(failure) => Self::Fail(failure.bounded(bounds)),
            Self::Block { reason, build } => Self::Block { reason: reason.bounded(), build },
            Self::Pause { by, reason } => Self::Pause { by: by.bounded(), reason: short(reason) },
            Self::Resume { by } => Self::Resume { by: by.bounded() },
            Self::Inherit { by, number, pause } => {
                Self::Inherit { by: by.bounded(), number, pause: pause.map(short) }
            }
            Self::Cancel { by, reason } => Self::Cancel { by: by.bounded(), reason: short(reason) },
            Self::Terminate { by, reason } => Self::Terminate { by: by.bounded(), reason: short(reason) },
            Self::Unblock { by, step } => Self::Unblock { by: by.bounded(), step },
            Self::RejectSignal(rejected) => Self::RejectSignal(Box::new(rejected.bounded())),
            Self::SetTimer { .. }
            | Self::FireTimer { .. }
            | Self::ReceiveSignal { .. }
            | Self::StartChild { .. }
            | Self::CancelChild { .. }
            | Self::ShowDeadline { .. }
            | Self::ExpireDeadline
            | Self::Complete { .. }
            | Self::ContinueAsNew { .. }
            | Self::RecordForeign(_) => self,
        }
    }
}

impl Message {
    /// Checks that the texts of this message keep to their bound. A person can shorten a text, so
    /// nothing is cut here.
    pub(crate) fn check_texts(&self, bounds: &Bounds) -> Result<(), TooLarge> {
        let other = match &self.body {
            Body::Pause { reason } | Body::Cancel { reason } | Body::Terminate { reason } => {
                ("the reason", reason.len())
            }
            Body::Unblock { step: Some(StepRemedy { step, .. }) } => ("the name of the step", step.len()),
            Body::Unblock { step: None }
            | Body::Resume
            | Body::Inherit { .. }
            | Body::Retry
            | Body::Start(_)
            | Body::Signal { .. }
            | Body::ChildDone { .. } => ("nothing", 0),
        };
        for (what, found) in [("the name of who asks", self.by.0.len()), other] {
            bounds.check("REASON_BYTES_MAX", what, (found, Bounds::REASON_BYTES_MAX))?;
        }
        Ok(())
    }
}

impl RejectedSignal {
    fn bounded(self) -> Self {
        let (expected, complaint) = (short(self.expected), short(self.complaint));
        Self { by: self.by.bounded(), expected, complaint, ..self }
    }
}

impl By {
    fn bounded(self) -> Self {
        match self.0.len() {
            0..=Bounds::REASON_BYTES_MAX => self,
            _ => Self(short(self.0.to_string()).into()),
        }
    }
}

impl Outcome {
    fn bounded(self, bounds: &Bounds) -> Self {
        match self {
            Self::Success(_) => self,
            Self::Failure(failure) => Self::Failure(failure.bounded(bounds)),
            Self::Unrecordable(Unrecordable { reason }) => {
                Self::Unrecordable(Unrecordable { reason: short(reason) })
            }
        }
    }
}

impl Failure {
    /// Returns the same error with texts over the bound cut and a value over the bound left out.
    ///
    /// The texts share one bound. If there are causes, the message gets at most half of it: the
    /// last cause often says the most.
    pub fn bounded(mut self, bounds: &Bounds) -> Self {
        let bytes_max = if planted(Bug::ErrorsUnbounded) { usize::MAX } else { bounds.failure_bytes() };
        if let Some(value) = self.value.take_if(|value| value.as_bytes().len() > bytes_max) {
            let found = value.as_bytes().len();
            self.chain.insert(0, format!("its value was left out: {found} bytes, at most {bytes_max}"));
        }
        if let Some(at) = &mut self.at {
            at.site = at.site.take().map(short);
        }
        let causes: usize = self.chain.iter().map(String::len).sum();
        if self.type_name.len() + self.message.len() + causes > bytes_max {
            self.cut_texts(bytes_max);
        }
        self
    }

    fn cut_texts(&mut self, bytes_max: usize) {
        // Reserved for the note about causes that are left out.
        let mut left = bytes_max.saturating_sub(text::CUT_BYTES_MIN);
        let mut cut = |text: &mut String, share: usize| {
            *text = text::cut(std::mem::take(text), left / share);
            left = left.saturating_sub(text.len());
            left
        };
        cut(&mut self.type_name, 4);
        let count = self.chain.len();
        cut(&mut self.message, if count == 0 { 1 } else { 2 });
        let full = self.chain.iter_mut().position(|cause| cut(cause, 1) < text::CUT_BYTES_MIN);
        let kept = full.map_or(count, |last| last + 1);
        if kept < count {
            self.chain.truncate(kept);
            self.chain.push(format!("… ({} more left out)", count - kept));
        }
    }
}

impl Block {
    fn bounded(self) -> Self {
        match self {
            Self::Mismatch { expected, found } => {
                Self::Mismatch { expected: short(expected), found: short(found) }
            }
            Self::Undecodable { what, expected, found } => {
                Self::Undecodable { what: short(what), expected: short(expected), found: short(found) }
            }
            Self::Unrecordable { op, reason } => Self::Unrecordable { op, reason: short(reason) },
            Self::ForeignAwait { workflow, last } => {
                Self::ForeignAwait { workflow: short(workflow), last: last.map(short) }
            }
            Self::NameClash { clash, site } => Self::NameClash { clash, site: short(site) },
            Self::Misplaced { op, place } => Self::Misplaced { op: short(op), place: short(place) },
            Self::Limit { reason } => Self::Limit { reason: short(reason) },
            Self::Poison { reason } => Self::Poison { reason: short(reason) },
            // An excerpt is short.
            Self::OtherInput(_) => self,
        }
    }
}

fn short(text: String) -> String {
    text::cut(text, Bounds::REASON_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Details, FailureKind, Payload};

    fn failure(message: usize, chain: &[usize], value: usize) -> Failure {
        let text = |bytes| "x".repeat(bytes);
        Details {
            kind: FailureKind::Error,
            type_name: "my::Error".to_owned(),
            message: text(message),
            chain: chain.iter().map(|bytes| text(*bytes)).collect(),
            value: (value > 0).then(|| Payload::from(vec![b'1'; value])),
            at: None,
        }
        .into()
    }

    /// Checks the number of bytes that are kept of a failure: of its message, each cause and its
    /// value.
    fn check(given: Failure, message: usize, chain: &[usize], value: usize) {
        let bounds = Bounds { failure_bytes_max: 1_000, ..Bounds::default() };
        let kept = given.bounded(&bounds);
        let found: Vec<_> = kept.chain.iter().map(String::len).collect();
        let bytes = kept.value.as_ref().map_or(0, |value| value.as_bytes().len());
        assert_eq!((kept.message.len(), found.as_slice(), bytes), (message, chain, value), "{kept:?}");
        assert_eq!(kept.clone().bounded(&bounds), kept, "what was cut is not cut again");
    }

    #[test]
    fn an_error_within_its_bound_is_kept_whole() {
        check(failure(100, &[200, 300], 1_000), 100, &[200, 300], 1_000);
        check(failure(991, &[], 0), 991, &[], 0);
    }

    #[test]
    fn an_error_over_its_bound_is_cut_and_says_so() {
        let bounds = Bounds { failure_bytes_max: 1_000, ..Bounds::default() };
        let kept = failure(100_000, &[], 0).bounded(&bounds);
        assert!(kept.message.len() <= 1_000 && kept.message.ends_with("x… (99089 bytes left out)"), "{kept}");
        let kept = failure(10, &[600, 600, 600], 0).bounded(&bounds);
        let chain: Vec<_> = kept.chain.iter().map(|cause| cause.trim_start_matches('x')).collect();
        assert_eq!(chain, ["", "… (299 bytes left out)", "… (1 more left out)"]);
        let kept = failure(10, &[], 1_001).bounded(&bounds);
        assert_eq!(kept.value, None);
        assert_eq!(kept.chain, ["its value was left out: 1001 bytes, at most 1000"]);
    }

    #[test]
    fn the_causes_have_their_share() {
        let bounds = Bounds { failure_bytes_max: 1_000, ..Bounds::default() };
        let kept = failure(100_000, &[20], 0).bounded(&bounds);
        assert!(kept.message.len() <= 500);
        assert_eq!(kept.chain, ["x".repeat(20)]);
    }

    #[test]
    fn an_error_is_never_larger_than_a_payload_may_be() {
        let bounds = Bounds { payload_bytes_max: 100, ..Bounds::default() };
        assert!(failure(10_000, &[10_000; 50], 0).bounded(&bounds).to_string().len() < 200);
    }

    #[test]
    fn reasons_are_cut() {
        let (by, reason) = (By("b".repeat(5_000).into()), "r".repeat(5_000));
        let bounded = Command::Cancel { by, reason }.bounded(&Bounds::default());
        let Command::Cancel { by, reason } = bounded else { unreachable!("it is the same command") };
        for text in [&*by.0, &*reason] {
            assert!(text.len() <= Bounds::REASON_BYTES_MAX && text.contains("bytes left out"), "{text}");
        }
    }
}
