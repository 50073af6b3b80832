//! Reads executions whole. The stores of the simulator return small pages.

use abide_store::{ExecutionKey, InboxRead, Read, Result, Snapshot, Target, View};

/// Reads an execution with the whole journal of its current run and its whole inbox.
pub(crate) async fn whole(view: &(impl View + ?Sized), key: ExecutionKey) -> Result<Option<Snapshot>> {
    let target = Target::Key(key);
    let read =
        |from, with_inbox| Read { target: target.clone(), run: None, from, limit: usize::MAX, with_inbox };
    let Some(mut found) = view.read(read(1, true)).await? else { return Ok(None) };
    while let from = found.journal.len() as u64 + 1
        && from <= found.execution.entry_count()
    {
        let page = view.read(read(from, false)).await?.map(|next| next.journal).unwrap_or_default();
        if page.is_empty() {
            break;
        }
        found.journal.extend(page);
    }
    while let Some(after) = found.inbox.next {
        let page = view.inbox(InboxRead { key, after: Some(after), limit: usize::MAX }).await?;
        found.inbox.messages.extend(page.messages);
        found.inbox.next = page.next;
    }
    Ok(Some(found))
}
