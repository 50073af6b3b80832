//! The kinds of code that workers have registered under a name.

use abide_core::{Kind, Name};
use abide_engine::Client;
use abide_store::Workers;

use crate::command_error::{Code, CommandError};

/// The workers that know a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(crate) live: Kinds,
    /// The workers that have gone, as long as the store remembers them.
    pub(crate) gone: Kinds,
}

/// Whether somebody has registered a workflow or a task. It may be both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    pub(crate) workflow: bool,
    pub(crate) task: bool,
}

impl Registered {
    /// Asks the store.
    pub(crate) async fn read(client: &Client, name: &Name) -> Result<Self, CommandError> {
        const PAGE_COUNT: usize = 1_000;
        let (mut after, mut found, now) = (None, Self::default(), client.now());
        loop {
            let workers = Workers { namespace: client.namespace().clone(), after, limit: PAGE_COUNT };
            let page = client.store().workers(workers).await?;
            for row in &page {
                let is_live = row.retired.is_none() && row.expires_at > now;
                let kinds = if is_live { &mut found.live } else { &mut found.gone };
                let runs = &row.worker.ability.runs;
                kinds.workflow |= runs.iter().any(|(kind, known)| *kind == Kind::Workflow && known == name);
                kinds.task |= runs.iter().any(|(kind, known)| *kind == Kind::Task && known == name);
            }
            after = page.last().map(|row| row.session);
            if page.len() < PAGE_COUNT {
                return Ok(found);
            }
        }
    }

    /// Returns the kind to start under this name, if somebody knows it. A live worker knows better
    /// than one that has gone.
    pub(crate) fn kind(self) -> Option<Kind> {
        self.live.kind().or(self.gone.kind())
    }

    /// Whether a worker, live or gone, has registered this kind.
    pub(crate) fn knows(self, kind: Kind) -> bool {
        self.live.has(kind) || self.gone.has(kind)
    }

    /// Refuses a task that the live workers have registered only as a workflow: none of them would
    /// ever run it.
    pub(crate) fn check_task(self, name: &Name) -> Result<(), CommandError> {
        if self.live.workflow && !self.live.task {
            let message = format!("{name:?} is a workflow of the live workers, not a task: leave out --task");
            return Err(CommandError::new(Code::Refused, message));
        }
        Ok(())
    }
}

impl Kinds {
    fn kind(self) -> Option<Kind> {
        [Kind::Workflow, Kind::Task].into_iter().find(|kind| self.has(*kind))
    }

    fn has(self, kind: Kind) -> bool {
        match kind {
            Kind::Workflow => self.workflow,
            Kind::Task => self.task,
            Kind::Builtin => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Kinds = Kinds { workflow: false, task: false };
    const WORKFLOW: Kinds = Kinds { workflow: true, task: false };
    const TASK: Kinds = Kinds { workflow: false, task: true };
    const BOTH: Kinds = Kinds { workflow: true, task: true };

    #[test]
    fn live_workers_decide_before_those_that_have_gone() {
        let rows = [
            (NOBODY, NOBODY, None, true),
            (NOBODY, WORKFLOW, Some(Kind::Workflow), true),
            (NOBODY, TASK, Some(Kind::Task), true),
            (WORKFLOW, NOBODY, Some(Kind::Workflow), false),
            (WORKFLOW, TASK, Some(Kind::Workflow), false),
            (TASK, WORKFLOW, Some(Kind::Task), true),
            (BOTH, NOBODY, Some(Kind::Workflow), true),
        ];
        for (live, gone, kind, may_be_task) in rows {
            let registered = Registered { live, gone };
            assert_eq!(registered.kind(), kind, "{registered:?}");
            let name = Name::new("x").unwrap();
            assert_eq!(registered.check_task(&name).is_ok(), may_be_task, "{registered:?}");
        }
    }
}
