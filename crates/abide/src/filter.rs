//! Filters for lists of executions.

use abide_core::{InvalidName, Name, Namespace, Status, Timestamp, Waiting};
use abide_store::{ExecutionKey, List, ListCursor, ListOrder};

use crate::start::tags;

/// A filter for a list of executions: all of them, narrowed down.
#[derive(Clone, Debug)]
pub struct Filter {
    statuses: Vec<Status>,
    code: Option<String>,
    tags: Vec<(String, String)>,
    top_level: bool,
    oldest_first: bool,
    count_max: usize,
    after: Option<u64>,
}

impl Filter {
    /// The most executions that a list has unless [`take`](Self::take) says otherwise.
    pub const TAKE_DEFAULT: usize = 100;

    /// Selects all executions, the newest first, at most [`Filter::TAKE_DEFAULT`].
    pub fn all() -> Self {
        Self {
            statuses: Vec::new(),
            code: None,
            tags: Vec::new(),
            top_level: false,
            oldest_first: false,
            count_max: Self::TAKE_DEFAULT,
            after: None,
        }
    }

    /// Selects the executions that failed.
    pub fn failed() -> Self {
        Self::all().status(Status::Failed)
    }

    /// Selects the executions that completed.
    pub fn completed() -> Self {
        Self::all().status(Status::Completed)
    }

    /// Selects the executions that are blocked.
    pub fn blocked() -> Self {
        Self::all().status(Status::Blocked)
    }

    /// Selects the executions that have not ended.
    pub fn open() -> Self {
        let open = Status::ALL.into_iter().filter(|status| !status.is_terminal());
        open.fold(Self::all(), Self::status)
    }

    /// Adds the executions with this status.
    pub fn status(mut self, status: Status) -> Self {
        self.statuses.push(status);
        self
    }

    /// Selects only executions of this workflow or task.
    pub fn workflow(mut self, name: impl Into<String>) -> Self {
        self.code = Some(name.into());
        self
    }

    /// Selects only executions with this tag.
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.push((key.into(), value.into()));
        self
    }

    /// Selects only executions without a parent.
    pub fn top_level(mut self) -> Self {
        self.top_level = true;
        self
    }

    /// Lists the oldest first.
    pub fn oldest_first(mut self) -> Self {
        self.oldest_first = true;
        self
    }

    /// Lists at most `count_max` executions.
    pub fn take(mut self, count_max: usize) -> Self {
        self.count_max = count_max;
        self
    }

    /// Selects only executions that follow `last` in the same order: the next page of a list that
    /// ended with it.
    pub fn after(mut self, last: &Listed) -> Self {
        self.after = Some(last.key);
        self
    }

    pub(crate) fn list(&self, namespace: &Namespace) -> Result<List, InvalidName> {
        let workflow = |text: &String| Name::of_field("workflow name", text);
        Ok(List {
            statuses: self.statuses.clone(),
            name: self.code.as_ref().map(workflow).transpose()?,
            tags: tags(&self.tags)?,
            top_level: self.top_level,
            order: if self.oldest_first { ListOrder::OldestFirst } else { ListOrder::NewestFirst },
            after: self.after.map(|key| ListCursor(ExecutionKey(key))),
            with_tags: true,
            ..List::of(namespace.clone(), self.count_max)
        })
    }

    pub(crate) fn wanted_count(&self) -> usize {
        self.count_max
    }
}

impl Default for Filter {
    fn default() -> Self {
        Self::all()
    }
}

/// One execution in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: String,
    /// Workflow or task.
    pub kind: abide_core::Kind,
    /// The name of the workflow or task.
    pub name: String,
    /// The status of the execution.
    pub status: Status,
    /// The number of its run, from 1; `None` if it cannot be read.
    pub run: Option<u32>,
    /// Its tags: keys and values.
    pub tags: Vec<(String, String)>,
    /// An excerpt of bounded size of its waits.
    pub waiting: Vec<Waiting>,
    /// The time at which it wakes if nothing arrives before.
    pub wake_at: Option<Timestamp>,
    /// The time of its creation; `None` if it cannot be read.
    pub created_at: Option<Timestamp>,
    /// The store's number for it, for [`Filter::after`].
    key: u64,
}

impl Listed {
    pub(crate) fn at(now: Timestamp, listed: abide_store::Listed) -> Self {
        Self {
            id: listed.address.id.to_string(),
            kind: listed.kind,
            name: listed.name.to_string(),
            status: listed.summary.status_at(now),
            run: listed.run,
            tags: listed.tags.iter().map(|tag| (tag.key.to_string(), tag.value.to_string())).collect(),
            key: listed.key.0,
            waiting: listed.summary.waiting.into_vec(),
            wake_at: listed.summary.wake_at,
            created_at: listed.created_at,
        }
    }
}
