//! Cancellation of a blocked execution: its code would reach the obstacle before the cancellation.

use crate::{Body, Execution, Phase};

impl Execution {
    /// Returns the index of the order that is followed next. Orders are followed in turn, but a
    /// blocked execution ends before it is unblocked.
    pub fn next_order<'a>(&self, mut orders: impl ExactSizeIterator<Item = &'a Body>) -> Option<usize> {
        let is_left = orders.len() > 0;
        let ends = |order: &Body| matches!(order, Body::Cancel { .. } | Body::Terminate { .. });
        let end = if self.is_blocked() { orders.position(ends) } else { None };
        end.or(is_left.then_some(0))
    }

    /// Whether a cancellation ends it without its code: the code was never called (`is_untouched`),
    /// or a block keeps the code from reaching the cancellation.
    pub fn ends_unseen(&self, is_untouched: bool) -> bool {
        is_untouched || self.is_blocked()
    }

    fn is_blocked(&self) -> bool {
        matches!(self.phase, Phase::Blocked { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, Block, Command, ExecutionId, Name, Namespace, Timestamp};

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn block() -> Command {
        Command::block(Block::Limit { reason: "too long".to_owned() }).found_by(&name("a build"))
    }

    fn after(commands: Vec<Command>) -> Execution {
        let address = Address { namespace: Namespace::default(), id: ExecutionId::new("a").expect("an id") };
        let start = crate::fixture::flow();
        let (mut execution, _) = Execution::start(address, start, Timestamp::default());
        for command in commands {
            let decision = execution.decide(command, Timestamp::default()).expect("it is decided");
            decision.record(&mut execution, Timestamp::default());
        }
        execution
    }

    #[test]
    fn what_is_blocked_ends_before_it_is_unblocked() {
        let reason = String::new;
        let pause = Body::Pause { reason: reason() };
        let unblock = Body::Unblock { step: None };
        for end in [Body::Cancel { reason: reason() }, Body::Terminate { reason: reason() }] {
            let orders = [unblock.clone(), pause.clone(), end];
            assert_eq!(after(vec![block()]).next_order(orders.iter()), Some(2));
            assert_eq!(after(vec![]).next_order(orders.iter()), Some(0), "it is not blocked");
        }
        assert_eq!(after(vec![block()]).next_order([&unblock, &pause].into_iter()), Some(0));
        assert_eq!(after(vec![block()]).next_order([].into_iter()), None);
    }
}
