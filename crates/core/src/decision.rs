//! How a decision becomes entries.

use crate::{Decision, Entry, Event, Execution, Message, SiteMark, Timestamp};

impl From<Event> for Decision {
    fn from(event: Event) -> Self {
        Self::new(event, Vec::new())
    }
}

impl Decision {
    pub(crate) fn new(event: Event, outgoing: Vec<Message>) -> Self {
        Self { event: Some(event), outgoing, tree: None }
    }

    /// Numbers the event, folds it into `execution` and returns it as an entry.
    pub fn record(self, execution: &mut Execution, now: Timestamp) -> (Option<Entry>, Vec<Message>) {
        self.record_from(None, execution, now)
    }

    /// Does the same for an event that comes from this place in the code.
    #[inline]
    pub fn record_from(
        self,
        mut site: Option<SiteMark>,
        execution: &mut Execution,
        now: Timestamp,
    ) -> (Option<Entry>, Vec<Message>) {
        let number = |event| {
            let seq = execution.entry_count().saturating_add(1);
            let entry = Entry { seq, at: now, event, site: site.take() };
            execution.apply(&entry);
            entry
        };
        (self.event.map(number), self.outgoing)
    }
}
