//! How a decision becomes entries.

use crate::{Decision, Entry, Event, Execution, Message, SiteMark, Timestamp};

impl From<Event> for Decision {
    fn from(event: Event) -> Self {
        Self::new(event, None)
    }
}

impl Decision {
    pub(crate) fn new(event: Event, outgoing: Option<Message>) -> Self {
        Self { event: Some(event), outgoing, tree: None }
    }

    /// Numbers the event, folds it into `execution` and returns it as an entry.
    pub fn record(self, execution: &mut Execution, now: Timestamp) -> (Option<Entry>, Option<Message>) {
        self.record_from(None, execution, now)
    }

    /// Does the same for an event that comes from this place in the code.
    #[inline]
    pub fn record_from(
        self,
        site: Option<SiteMark>,
        execution: &mut Execution,
        now: Timestamp,
    ) -> (Option<Entry>, Option<Message>) {
        (self.event.map(|event| execution.record(event, site, now)), self.outgoing)
    }
}

impl Execution {
    /// Numbers the event of a decision, which comes from this place in the code, and folds it in.
    #[inline]
    pub fn record(&mut self, event: Event, site: Option<SiteMark>, now: Timestamp) -> Entry {
        let seq = self.entry_count().saturating_add(1);
        let entry = Entry { seq, at: now, event, site };
        self.apply(&entry);
        entry
    }
}
