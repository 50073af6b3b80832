//! The match between executions and the workers that may run them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::grow::growable;
use crate::{Name, Namespace};

/// The sort of code that an execution runs. The numbers are written to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A function whose progress is journalled and replayed.
    Workflow,
    /// A function that runs whole and is retried whole.
    Task,
    /// Work of abide's own, which every worker does, whatever its lanes are.
    Builtin,
}

impl Kind {
    /// Returns the word for this kind in texts that people read.
    pub fn word(self) -> &'static str {
        match self {
            Self::Workflow => "workflow",
            Self::Task => "task",
            Self::Builtin => "builtin",
        }
    }
}

/// Everything that decides which workers may take an execution. Executions of one route form one
/// queue, so that work which no worker here can take never stands before work that one can.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The tenant.
    pub namespace: Namespace,
    /// The named queue.
    pub lane: Name,
    /// Workflow or task.
    pub kind: Kind,
    /// The name of the workflow or task.
    pub name: Name,
    /// The capabilities that it needs.
    pub requires: BTreeSet<Name>,
}

growable!(Route {
    fields: namespace, lane, kind, name, requires;
    gained: ;
});

/// The abilities of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ability {
    /// The tenant it works for.
    pub namespace: Namespace,
    /// The lanes it serves.
    pub lanes: BTreeSet<Name>,
    /// The workflows and tasks whose code it has.
    pub runs: BTreeSet<(Kind, Name)>,
    /// Its other capabilities.
    pub capabilities: BTreeSet<Name>,
    /// The version of its program.
    pub build: Option<Name>,
}

growable!(Ability {
    fields: namespace, lanes, runs, capabilities;
    gained: 1 => build;
});

impl Ability {
    /// As a lane, every lane; as the name of a workflow or task, every one of that kind. It is for
    /// workers whose code is elsewhere, and which learn its names when they ask for it.
    pub const ANY: &'static str = "*";

    fn has_lane(&self, route: &Route) -> bool {
        route.kind == Kind::Builtin || self.lanes.contains(&route.lane) || self.lanes.contains(Self::ANY)
    }

    /// Whether it has the code of a workflow or task.
    pub fn has_code(&self, kind: Kind, name: &Name) -> bool {
        let is_any = |(of, any): &(Kind, Name)| *of == kind && any.as_str() == Self::ANY;
        self.runs.contains(&(kind, name.clone())) || self.runs.iter().any(is_any)
    }

    /// Whether this worker may take executions of `route`.
    pub fn serves(&self, route: &Route) -> bool {
        self.namespace == route.namespace
            && self.has_lane(route)
            && self.has_code(route.kind, &route.name)
            && route.requires.is_subset(&self.capabilities)
    }

    /// Returns everything that keeps this worker from taking executions of `route`, or `None` if
    /// nothing does.
    pub fn objection(&self, route: &Route) -> Option<String> {
        let lane = (!self.has_lane(route)).then(|| format!("does not serve lane {:?}", route.lane));
        let code = (!self.has_code(route.kind, &route.name))
            .then(|| format!("has no {} {:?}", route.kind.word(), route.name));
        let missing = route.requires.difference(&self.capabilities);
        let missing = missing.map(|capability| format!("lacks the capability {capability:?}"));
        let all: Vec<String> = lane.into_iter().chain(code).chain(missing).collect();
        (!all.is_empty()).then(|| all.join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> BTreeSet<Name> {
        texts.iter().map(|text| Name::new(text).expect("a name")).collect()
    }

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn route(lane: &str, requires: &[&str]) -> Route {
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
            build: None,
        };
        let rows = [
            ("gpu", vec!["cuda"], None),
            ("gpu", vec![], None),
            ("a,b", vec!["x,y"], None),
            ("a", vec![], Some(r#"does not serve lane "a""#)),
            ("gpu", vec!["cuda", "x"], Some(r#"lacks the capability "x""#)),
            (
                "a",
                vec!["x", "y"],
                Some(r#"does not serve lane "a" and lacks the capability "x" and lacks the capability "y""#),
            ),
        ];
        for (lane, requires, objection) in rows {
            let route = route(lane, &requires);
            assert_eq!(ability.objection(&route).as_deref(), objection);
            assert_eq!(ability.serves(&route), objection.is_none());
        }
    }

    #[test]
    fn a_wildcard_stands_for_every_lane_or_for_every_name_of_its_kind() {
        let ability = |lane, kind, text| Ability {
            namespace: Namespace::default(),
            lanes: names(&[lane]),
            runs: [(kind, name(text))].into(),
            capabilities: names(&["cuda"]),
            build: None,
        };
        let rows = [
            (ability("*", Kind::Task, "render"), None),
            (ability("gpu", Kind::Task, "*"), None),
            (ability("*", Kind::Task, "*"), None),
            (ability("*", Kind::Workflow, "*"), Some(r#"has no task "render""#)),
            (ability("*", Kind::Task, "ren*"), Some(r#"has no task "render""#)),
            (ability("g*", Kind::Task, "*"), Some(r#"does not serve lane "gpu""#)),
        ];
        for (ability, objection) in rows {
            let route = route("gpu", &["cuda"]);
            assert_eq!(ability.objection(&route).as_deref(), objection, "{ability:?}");
            assert_eq!(ability.serves(&route), objection.is_none());
        }
        // A wildcard is no capability, and a lane of that name is no wildcard.
        let all = ability("*", Kind::Task, "*");
        assert_eq!(all.objection(&route("gpu", &["x"])).as_deref(), Some(r#"lacks the capability "x""#));
        assert!(!ability("gpu", Kind::Task, "render").serves(&route("*", &[])));
    }
}
