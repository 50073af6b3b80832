//! Sends the orders of a run to its children.
//!
//! The parent's own commit carries the orders if its driver knows the children and they are few.
//! Otherwise, because there are many or nobody replayed the parent, that commit starts an execution
//! of abide's own, which lists the children in the store and sends the orders in batches. Any
//! worker runs it, and orders that it repeats after a crash do no harm, because each has an id.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use abide_core::{
    Address, Block, Body, Command, Event, Kind, Message, MessageId, Name, Namespace, Payload, Start, Status,
    TreeOrder,
};
use abide_store::{Error, Hold, List, ListCursor, Listing, Opening, ParentRun};

use crate::driver::{Driver, End};
use crate::mailbox::Order;
use crate::pauses::Pauses;
use crate::runtime::BoxFuture;
use crate::seat::{Leave, Seat};

/// The most children that one commit sends orders to.
pub(crate) const TOLD_COUNT_MAX: usize = 100;

/// The name of the execution that sends orders to children.
const NAME: &str = "tree";

pub(crate) fn name() -> Name {
    Name::new(NAME).expect("a literal name")
}

/// Returns the message that delegates an order for all open children of a run.
pub(crate) fn delegated(namespace: Namespace, order: &TreeOrder) -> Message {
    let input = serde_json::to_vec(order).expect("orders always serialize");
    let start = Start::of(Kind::Builtin, name(), Payload::from(input));
    let to = Address { namespace, id: order.delegate() };
    Message::new(MessageId::of_start(), to, order.by(), Body::Start(start.into()))
}

/// The driver that sends orders to children.
pub(crate) struct TreeDriver;

impl Driver for TreeDriver {
    fn begin(&self, seat: Seat, opening: Opening) -> BoxFuture<End> {
        Box::pin(Teller { seat, after: None, failures: Pauses::default() }.run(opening))
    }
}

struct Teller {
    seat: Seat,
    after: Option<ListCursor>,
    failures: Pauses,
}

impl Teller {
    async fn run(mut self, opening: Opening) -> End {
        let order = match order_of(&opening) {
            Ok(order) => order,
            Err(reason) => {
                // A refusal means that the phase lets nothing run anyway.
                let _ = self.seat.decide(Command::block(Block::Limit { reason }));
                let hold = self.seat.parked();
                return self.commit(hold, Some(End::Released)).await.unwrap_or(End::Released);
            }
        };
        loop {
            if self.seat.order() >= Order::Drain {
                return self.commit(Hold::Yield, Some(End::Released)).await.unwrap_or(End::Released);
            }
            let page = match self.children(&order).await {
                Ok(Some(page)) => page,
                Ok(None) => continue,
                Err(end) => return end,
            };
            for child in page.items {
                self.seat.emit(order.message(child.address));
            }
            self.after = page.next;
            if self.after.is_none() {
                return self.complete().await;
            }
            if let Some(end) = self.commit(Hold::Keep, None).await {
                return end;
            }
        }
    }

    /// Returns the next children that have not ended. Returns `None` after a pause, if the store
    /// cannot list them now, and at once if an order to leave has come.
    async fn children(&mut self, order: &TreeOrder) -> Result<Option<Listing>, End> {
        let open = Status::ALL.into_iter().filter(|status| !status.is_terminal());
        let list = List {
            statuses: open.collect(),
            parent: Some(ParentRun { id: order.parent.clone(), run: order.run }),
            after: self.after,
            ..List::of(self.seat.execution().address().namespace.clone(), TOLD_COUNT_MAX)
        };
        let listing = self.seat.engine.store.list(list);
        let Some(listed) = self.unless_ordered(listing).await? else { return Ok(None) };
        match listed {
            Ok(page) => {
                self.failures = Pauses::default();
                Ok(Some(page))
            }
            Err(error) if error.is_transient() => {
                if self.failures.is_first() {
                    let (parent, run) = (order.parent.as_str(), order.run);
                    tracing::error!(%error, parent, run, "the children of a run cannot be listed; they are asked for again, less and less often");
                }
                let pause = self.seat.engine.runtime.sleep(self.failures.next(&error));
                self.unless_ordered(pause).await.map(|_| None)
            }
            Err(Error::Closed) => Err(End::Lost(Error::Closed.to_string())),
            Err(error) => Err(End::NotRead(error.to_string())),
        }
    }

    /// Waits for something that may take long. Returns `None` if an order to leave comes first.
    async fn unless_ordered<T>(
        &mut self,
        mut awaited: impl Future<Output = T> + Unpin,
    ) -> Result<Option<T>, End> {
        poll_fn(|cx| {
            self.seat.enter(cx);
            let ended = self.seat.poll_end(cx);
            self.seat.leave(false);
            match ended {
                Poll::Ready(end) => Poll::Ready(Err(end)),
                Poll::Pending if self.seat.order() >= Order::Drain => Poll::Ready(Ok(None)),
                Poll::Pending => {
                    let answer = std::task::ready!(Pin::new(&mut awaited).poll(cx));
                    Poll::Ready(Ok(Some(answer)))
                }
            }
        })
        .await
    }

    async fn complete(&mut self) -> End {
        let result = Payload::from("null");
        match self.seat.decide(Command::Complete { result, unused: Vec::new() }) {
            Ok(entries) => {
                if let Some(last) = entries.into_iter().next_back() {
                    self.seat.finish(last.event);
                }
                self.committed().await.unwrap_or(End::Released)
            }
            Err(refusal) => End::Lost(format!("its end was refused: {refusal}")),
        }
    }

    async fn commit(&mut self, hold: Hold, end: Option<End>) -> Option<End> {
        self.seat.send(Leave { hold, waiting: &[], wake_at: None, end });
        self.committed().await
    }

    /// Waits for the commit under way, and returns the end of the seat, if it has ended.
    async fn committed(&mut self) -> Option<End> {
        poll_fn(|cx| {
            self.seat.enter(cx);
            let ended = self.seat.poll_end(cx);
            self.seat.leave(false);
            match ended {
                Poll::Ready(end) => Poll::Ready(Some(end)),
                Poll::Pending if self.seat.is_busy() => Poll::Pending,
                Poll::Pending => Poll::Ready(None),
            }
        })
        .await
    }
}

/// Returns the order that an execution was started with.
fn order_of(opening: &Opening) -> Result<TreeOrder, String> {
    match opening.first_entry().map_err(|error| error.to_string())?.event {
        Event::Started(start) => {
            serde_json::from_slice(start.input.as_bytes()).map_err(|error| error.to_string())
        }
        other => Err(format!("its journal begins with {}", other.word())),
    }
}
