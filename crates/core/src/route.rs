//! Who may run what.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Name, Namespace};

/// What sort of code an execution runs. The numbers are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A function whose progress is journalled and replayed.
    Workflow,
    /// A function that runs whole and is retried whole.
    Task,
}

impl Kind {
    /// The word for this kind in texts that people read.
    pub fn word(self) -> &'static str {
        match self {
            Self::Workflow => "workflow",
            Self::Task => "task",
        }
    }
}

/// Everything that decides which workers may take an execution. Executions of one route form one queue, so that
/// work which nobody here can take never stands before work that somebody can.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Route {
    /// The tenant.
    pub namespace: Namespace,
    /// The named queue.
    pub lane: Name,
    /// Workflow or task.
    pub kind: Kind,
    /// Which one.
    pub name: Name,
    /// The capabilities that it needs.
    pub requires: BTreeSet<Name>,
}

/// What one worker offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ability {
    /// The tenant it works for.
    pub namespace: Namespace,
    /// The lanes it serves.
    pub lanes: BTreeSet<Name>,
    /// The workflows and tasks whose code it has.
    pub runs: BTreeSet<(Kind, Name)>,
    /// What else it can do.
    pub capabilities: BTreeSet<Name>,
}

impl Ability {
    /// Whether this worker may take executions of `route`.
    pub fn serves(&self, route: &Route) -> bool {
        self.namespace == route.namespace
            && self.lanes.contains(&route.lane)
            && self.runs.contains(&(route.kind, route.name.clone()))
            && route.requires.is_subset(&self.capabilities)
    }

    /// Why this worker may not take executions of `route`; `None` when it may.
    pub fn objection(&self, route: &Route) -> Option<String> {
        if !self.lanes.contains(&route.lane) {
            return Some(format!("does not serve lane {:?}", route.lane));
        }
        if !self.runs.contains(&(route.kind, route.name.clone())) {
            return Some(format!("has no {} {:?}", route.kind.word(), route.name));
        }
        let missing = route.requires.difference(&self.capabilities).next()?;
        Some(format!("lacks the capability {missing:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> BTreeSet<Name> {
        texts.iter().map(|text| Name::new(text).expect("a name")).collect()
    }

    fn route(lane: &str, requires: &[&str]) -> Route {
        let name = |text| Name::new(text).expect("a name");
        Route {
            namespace: Namespace::default(),
            lane: name(lane),
            kind: Kind::Task,
            name: name("render"),
            requires: names(requires),
        }
    }

    #[test]
    fn a_worker_serves_what_it_has_lane_code_and_capabilities_for() {
        let ability = Ability {
            namespace: Namespace::default(),
            lanes: names(&["gpu", "a,b"]),
            runs: [(Kind::Task, Name::new("render").expect("a name"))].into(),
            capabilities: names(&["cuda", "x,y"]),
        };
        let rows = [
            ("gpu", vec!["cuda"], None),
            ("gpu", vec![], None),
            ("a,b", vec!["x,y"], None),
            ("a", vec![], Some(r#"does not serve lane "a""#)),
            ("gpu", vec!["cuda", "x"], Some(r#"lacks the capability "x""#)),
        ];
        for (lane, requires, objection) in rows {
            let route = route(lane, &requires);
            assert_eq!(ability.objection(&route).as_deref(), objection);
            assert_eq!(ability.serves(&route), objection.is_none());
        }
    }
}
