//! `repair`: rewrites all tags if they are out of order.
//!
//! A flipped byte leaves a tag where no lookup finds it, and may hide its neighbours. All tags can
//! be derived from the executions. So all of them are deleted, which needs no lookup, and restored,
//! some at a time. A lookup meanwhile may miss a tag. If a repair breaks off, the next one notices
//! the missing tags and restores them.

use abide_store::{Error, Result, Verification};

use super::tags::{
    ClearTagsWork, RepairTagsWork, TagWork, are_executions_in_order, are_in_order, tagged_behind,
    underived_tags, wrong_tags,
};
use super::verify::{check_integrity, told};
use super::{Repairs, unless_unread};
use crate::store::SqliteStore;
use crate::view::View;
use crate::writer::Scheduling;

impl SqliteStore {
    /// Rewrites the tags if one of them is out of order. Tags that cannot be derived stay.
    pub(crate) async fn write_tags_anew(&self, repairs: &mut Repairs) -> Result<()> {
        if self.view("repair", |view| are_in_order(view.connection)).await? {
            return Ok(());
        }
        if !self.view("repair", |view| are_executions_in_order(view.connection)).await? {
            repairs.left.push("the tags are left out of order, because the executions are".to_owned());
            return Ok(());
        }
        let underived = self.view("repair", |view| underived_tags(view.connection)).await?;
        match self.write(ClearTagsWork(underived), Scheduling::Queued).await {
            Err(Error::Corrupt { what }) => {
                repairs.left.push(format!("the tags cannot be written anew: {what}"));
                return Ok(());
            }
            cleared => cleared?,
        }
        let mut next = Some(0);
        while let Some(after) = next {
            let found = self.view("repair", move |view| tagged_behind(view.connection, after)).await?;
            match self.write(TagWork(found.keys), Scheduling::Queued).await {
                // The search for damaged executions notices their missing tags.
                Err(Error::Corrupt { what }) => repairs.left.push(format!("some tags are missing: {what}")),
                tagged => tagged?,
            }
            next = found.next;
        }
        repairs.rebuilt.push("the tags were written anew".to_owned());
        Ok(())
    }

    /// Deletes the tags that no execution was started with. Other tables say which execution has a
    /// tag: if SQLite finds a fault in the file, a tag may wrongly seem to have none.
    pub(crate) async fn repair_tags(&self, repairs: &mut Repairs) -> Result<()> {
        loop {
            let look = |view: &View<'_>| {
                let mut found = Verification::default();
                let wrong = wrong_tags(view.connection);
                let wrong = told(&mut found, "the tags", wrong)?.unwrap_or_default();
                if !wrong.is_empty() {
                    check_integrity(view.connection, &mut found)?;
                }
                Ok((wrong, found.problems))
            };
            let (wrong, problems) = self.view("repair", look).await?;
            if let Some(problem) = problems.first() {
                repairs.left.push(format!("tags that nothing was started with are left: {problem}"));
                return Ok(());
            }
            if wrong.is_empty() {
                return Ok(());
            }
            let repaired = self.write(RepairTagsWork(wrong), Scheduling::Queued).await;
            let repaired = unless_unread(repaired, || "some tags".to_owned())?;
            if repaired.rebuilt.is_empty() {
                repairs.left.push("some tags that nothing was started with cannot be deleted".to_owned());
                return Ok(());
            }
            repairs.rebuilt.extend(repaired.rebuilt);
        }
    }
}
