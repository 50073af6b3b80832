//! Listing executions.

use abide_core::{ExecutionId, Kind, Namespace, Start, Status};

use super::make::{child_of, complete, delayed, everything, flow, name, start_of, tag, worker};
use super::{Subject, block_on, table};
use crate::{Aside, List, ListOrder, ParentRun, Unreadable};

table![
    list_tells_what_an_execution_is,
    list_tells_tags_if_asked,
    list_is_in_order_of_creation,
    list_filters_by_status,
    list_filters_by_the_status_of_the_moment,
    list_filters_by_name,
    list_filters_by_tags,
    list_filters_by_top_level,
    list_filters_by_parent,
    list_filters_by_what_was_set_aside,
    list_filters_by_namespace,
    list_filters_together,
    list_pages_lose_and_repeat_nothing,
    list_pages_of_filtered_executions_lose_and_repeat_nothing,
    list_ends_with_its_last_page,
    list_cursor_outlives_new_executions,
    empty_list_is_empty,
];

fn ids(subject: &Subject, list: List) -> Vec<String> {
    subject.list(list).items.iter().map(|item| item.address.id.as_str().to_owned()).collect()
}

fn list_tells_what_an_execution_is(subject: &Subject) {
    let key = subject.start("a", Start { kind: Kind::Task, ..flow() });
    let listing = subject.list(everything());
    assert_eq!((listing.items.len(), listing.next), (1, None));
    let (item, found) = (&listing.items[0], subject.look("a"));
    assert_eq!((item.key, &item.address), (key, found.execution.address()));
    assert_eq!((item.kind, &item.name, item.run), (Kind::Task, &name("flow"), Some(1)));
    assert_eq!((&item.summary, item.created_at), (&found.summary, Some(subject.now())));
}

fn list_tells_tags_if_asked(subject: &Subject) {
    let tags = vec![tag("customer", "c7"), tag("region", "eu")];
    subject.start("a", Start { tags: tags.clone(), ..flow() });
    subject.start("b", flow());
    let told = |list| -> Vec<_> { subject.list(list).items.into_iter().map(|item| item.tags).collect() };
    assert_eq!(told(everything()), [vec![], vec![]]);
    assert_eq!(told(List { with_tags: true, ..everything() }), [tags, vec![]]);
}

fn list_is_in_order_of_creation(subject: &Subject) {
    for id in ["b", "c", "a"] {
        subject.start(id, flow());
    }
    assert_eq!(ids(subject, everything()), ["b", "c", "a"]);
    let newest = List { order: ListOrder::NewestFirst, ..everything() };
    assert_eq!(ids(subject, newest), ["a", "c", "b"]);
}

fn list_filters_by_status(subject: &Subject) {
    let (_seat, mut held) = subject.held("done");
    subject.record(&mut held, complete());
    subject.start("later", delayed(subject.later_ms(100)));
    subject.start("running", flow());
    let of = |statuses: &[Status]| ids(subject, List { statuses: statuses.to_vec(), ..everything() });
    assert_eq!(of(&[Status::Completed]), ["done"]);
    assert_eq!(of(&[Status::Running, Status::Scheduled]), ["later", "running"]);
    assert!(of(&[Status::Failed]).is_empty());
    assert_eq!(of(&[]).len(), 3);
}

/// The list agrees with the status that a reader computes: nobody records that a sleep is over.
fn list_filters_by_the_status_of_the_moment(subject: &Subject) {
    let (_seat, mut held) = subject.held("a");
    subject.commit(&subject.draft(&held).sleeping(subject.later_ms(100)).park(), &mut held);
    let of = |status| ids(subject, List { statuses: vec![status], ..everything() });
    assert_eq!((of(Status::Sleeping), of(Status::Running)), (vec!["a".to_owned()], Vec::new()));
    subject.advance_ms(100);
    assert_eq!(subject.look("a").summary.status_at(subject.now()), Status::Running);
    assert_eq!((of(Status::Sleeping), of(Status::Running)), (Vec::new(), vec!["a".to_owned()]));
}

fn list_filters_by_name(subject: &Subject) {
    subject.start("a", flow());
    subject.start("b", Start { name: name("other"), ..flow() });
    let of = |text| ids(subject, List { name: Some(name(text)), ..everything() });
    assert_eq!(of("other"), ["b"]);
    assert_eq!(of("flow"), ["a"]);
    assert!(of("never used").is_empty());
}

fn list_filters_by_tags(subject: &Subject) {
    subject.start("both", Start { tags: vec![tag("k", "1"), tag("l", "2")], ..flow() });
    subject.start("one", Start { tags: vec![tag("k", "1")], ..flow() });
    subject.start("other", Start { tags: vec![tag("k", "1,2"), tag("l", "1")], ..flow() });
    let of = |tags: &[_]| ids(subject, List { tags: tags.to_vec(), ..everything() });
    assert_eq!(of(&[tag("k", "1")]), ["both", "one"]);
    assert_eq!(of(&[tag("k", "1"), tag("l", "2")]), ["both"]);
    assert_eq!(of(&[tag("k", "1,2")]), ["other"]);
    assert!(of(&[tag("k", "2")]).is_empty());
    assert!(of(&[tag("unknown", "1")]).is_empty());
}

fn list_filters_by_top_level(subject: &Subject) {
    let (_seat, mut held) = subject.held("parent");
    subject.commit(&subject.draft(&held).emitting(start_of("child", child_of("parent", "child"))), &mut held);
    assert_eq!(ids(subject, List { top_level: true, ..everything() }), ["parent"]);
    assert_eq!(ids(subject, everything()), ["parent", "child"]);
}

fn list_filters_by_parent(subject: &Subject) {
    let (_seat, mut held) = subject.held("parent");
    let mut later = child_of("parent", "later");
    later.parent.iter_mut().for_each(|parent| parent.run = 2);
    for (id, start) in [("a", child_of("parent", "a")), ("b", later), ("c", child_of("parent", "c"))] {
        subject.commit(&subject.draft(&held).emitting(start_of(id, start)), &mut held);
    }
    let of = |id: &str, run| {
        let parent = Some(ParentRun { id: ExecutionId::new(id).expect("an id"), run });
        ids(subject, List { parent, ..everything() })
    };
    assert_eq!(of("parent", 1), ["a", "c"]);
    assert_eq!(of("parent", 2), ["b"]);
    assert!(of("parent", 3).is_empty());
    assert!(of("a", 1).is_empty());
    assert!(of("never", 1).is_empty());
}

fn list_filters_by_what_was_set_aside(subject: &Subject) {
    let of = |list: List| ids(subject, List { set_aside: true, ..list });
    let tagged = |start: Start| Start { tags: vec![tag("k", "1")], ..start };
    let damaged = |(id, start): (&str, Start)| {
        subject.start(id, start);
        let held = subject.seat(worker()).claim_one();
        let unreadable = Unreadable::Damaged("a hole".to_owned());
        let aside = Aside { key: held.key, lease: held.lease, unreadable };
        block_on(subject.store.set_aside(aside)).expect("it is answered");
    };
    subject.start("sound", tagged(delayed(subject.later_ms(100))));
    assert!(of(everything()).is_empty());
    [("b", flow()), ("c", tagged(flow())), ("a", flow())].into_iter().for_each(damaged);
    assert_eq!(of(everything()), ["b", "c", "a"]);
    assert_eq!(of(List { order: ListOrder::NewestFirst, ..everything() }), ["a", "c", "b"]);
    assert_eq!(of(List { statuses: vec![Status::Damaged], ..everything() }).len(), 3);
    assert!(of(List { statuses: vec![Status::Scheduled], ..everything() }).is_empty());
    // The sound execution has this tag too, and a store may search by tag first.
    assert_eq!(of(List { tags: vec![tag("k", "1")], ..everything() }), ["c"]);
    assert!(of(List { tags: vec![tag("k", "2")], ..everything() }).is_empty());
    let first = subject.list(List { set_aside: true, limit: 2, ..everything() });
    assert_eq!(first.items.len(), 2);
    assert_eq!(of(List { after: first.next, ..everything() }), ["a"]);
}

fn list_filters_by_namespace(subject: &Subject) {
    subject.start("a", flow());
    let tenant = Namespace::new("tenant").expect("a name");
    let mut foreign = start_of("b", Start { tags: vec![tag("k", "1")], ..flow() });
    foreign.to.namespace = tenant.clone();
    subject.send(foreign);
    assert_eq!(ids(subject, everything()), ["a"]);
    assert_eq!(ids(subject, List { namespace: tenant, ..everything() }), ["b"]);
    assert!(ids(subject, List { tags: vec![tag("k", "1")], ..everything() }).is_empty());
}

fn list_filters_together(subject: &Subject) {
    let tagged = |text| Start { name: name(text), tags: vec![tag("k", "1")], ..flow() };
    subject.start("a", tagged("flow"));
    subject.start("b", tagged("other"));
    subject.start("c", flow());
    subject.start("d", Start { start_at: Some(subject.later_ms(9)), ..tagged("flow") });
    let list = List {
        name: Some(name("flow")),
        tags: vec![tag("k", "1")],
        statuses: vec![Status::Scheduled],
        top_level: true,
        ..everything()
    };
    assert_eq!(ids(subject, list), ["d"]);
}

/// Follows the cursor to the end.
fn paged(subject: &Subject, list: &List) -> Vec<String> {
    let (mut all, mut after) = (Vec::new(), list.after);
    loop {
        let listing = subject.list(List { after, ..list.clone() });
        assert!(listing.items.len() <= list.limit);
        all.extend(listing.items.iter().map(|item| item.address.id.as_str().to_owned()));
        assert!(all.len() < 1_000, "a list ends");
        after = listing.next;
        if after.is_none() {
            return all;
        }
    }
}

fn list_pages_lose_and_repeat_nothing(subject: &Subject) {
    let mut made: Vec<_> = (0..23).map(|n| format!("{n}")).collect();
    for id in &made {
        subject.start(id, flow());
    }
    for limit in [1, 5, 22, 23, 24] {
        assert_eq!(paged(subject, &List { limit, ..everything() }), made);
    }
    made.reverse();
    for limit in [1, 4, 23] {
        let newest = List { limit, order: ListOrder::NewestFirst, ..everything() };
        assert_eq!(paged(subject, &newest), made);
    }
}

fn list_pages_of_filtered_executions_lose_and_repeat_nothing(subject: &Subject) {
    for n in 0..60 {
        let tags = if n % 3 == 0 { vec![tag("third", "yes")] } else { Vec::new() };
        let text = if n % 2 == 0 { "even" } else { "odd" };
        subject.start(&format!("{n}"), Start { name: name(text), tags, ..flow() });
    }
    let expected: Vec<_> = (0..60).filter(|n| n % 6 == 3).map(|n| format!("{n}")).collect();
    for order in [ListOrder::OldestFirst, ListOrder::NewestFirst] {
        for limit in [1, 3, 10, 100] {
            let tags = vec![tag("third", "yes")];
            let list = List { tags, name: Some(name("odd")), limit, order, ..everything() };
            let mut found = paged(subject, &list);
            if order == ListOrder::NewestFirst {
                found.reverse();
            }
            assert_eq!(found, expected, "{order:?} in pages of {limit}");
        }
    }
}

fn list_ends_with_its_last_page(subject: &Subject) {
    for id in ["a", "b"] {
        subject.start(id, flow());
    }
    assert!(subject.list(List { limit: 1, ..everything() }).next.is_some());
    assert_eq!(subject.list(List { limit: 2, ..everything() }).next, None, "there is nothing after it");
    assert_eq!(subject.list(List { limit: 3, ..everything() }).next, None);
}

fn list_cursor_outlives_new_executions(subject: &Subject) {
    for id in ["a", "b", "c"] {
        subject.start(id, flow());
    }
    let newest = List { order: ListOrder::NewestFirst, limit: 2, ..everything() };
    let first = subject.list(newest.clone());
    subject.start("d", flow());
    let second = subject.list(List { after: first.next, ..newest });
    assert_eq!(second.items.len(), 1);
    assert_eq!(second.items[0].address.id.as_str(), "a");
}

fn empty_list_is_empty(subject: &Subject) {
    assert_eq!(subject.list(everything()), crate::Listing::default());
    subject.seat(worker());
    assert_eq!(subject.list(everything()).items.len(), 0);
}
