//! How a decision becomes entries.

use crate::{Decision, Entry, Event, Execution, Message, SiteMark, Timestamp};

impl From<Event> for Decision {
    fn from(event: Event) -> Self {
        Self::new(event, Vec::new())
    }
}

impl Decision {
    pub(crate) fn new(event: Event, outgoing: Vec<Message>) -> Self {
        Self { events: vec![event], outgoing, tree: None }
    }

    /// Numbers the events, folds them into `execution` and returns them as entries.
    pub fn record(self, execution: &mut Execution, now: Timestamp) -> (Vec<Entry>, Vec<Message>) {
        self.record_from(None, execution, now)
    }

    /// Does the same for events that come from this place in the code.
    pub fn record_from(
        self,
        mut site: Option<SiteMark>,
        execution: &mut Execution,
        now: Timestamp,
    ) -> (Vec<Entry>, Vec<Message>) {
        let number = |event| {
            let seq = execution.entry_count().saturating_add(1);
            let entry = Entry { seq, at: now, event, site: site.take() };
            execution.apply(&entry);
            entry
        };
        (self.events.into_iter().map(number).collect(), self.outgoing)
    }
}
