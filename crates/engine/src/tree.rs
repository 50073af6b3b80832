//! Sends the orders of a run to its children.
//!
//! The parent's own commit carries the orders if its driver knows the children and they are few.
//! Otherwise, because there are many or nobody replayed the parent, that commit starts an execution
//! of abide's own, which lists the children in the store and sends the orders in batches. Any
//! worker runs it, and orders that it repeats after a crash do no harm, because each has an id.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use abide_core::{
    Address, Block, Body, Command, Event, Kind, Message, MessageId, Name, Namespace, Payload, Start, Status,
    TreeOrder,
};
use abide_store::{Error, Hold, List, ListCursor, Listing, ParentRun};

use crate::driver::{Driver, End, Opening};
use crate::mailbox::Order;
use crate::runtime::BoxFuture;
use crate::seat::{Leave, Seat};

/// The most children that one commit sends orders to.
pub(crate) const TOLD_COUNT_MAX: usize = 100;

/// The name of the execution that sends orders to children.
const NAME: &str = "tree";

/// The pause before a store that could not be read is asked again.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn name() -> Name {
    Name::new(NAME).expect("a literal name")
}

/// Returns the message that delegates an order for all open children of a run.
pub(crate) fn delegated(namespace: Namespace, order: &TreeOrder) -> Message {
    let input = serde_json::to_vec(order).expect("orders always serialize");
    let start = Start::of(Kind::Builtin, name(), Payload::from(input));
    let to = Address { namespace, id: order.delegate() };
    Message::new(MessageId::new("start"), to, order.by(), Body::Start(start.into()))
}

/// The driver that sends orders to children.
pub(crate) struct TreeDriver;

impl Driver for TreeDriver {
    fn begin(&self, seat: Seat, opening: Opening) -> BoxFuture<End> {
        Box::pin(Teller { seat, after: None }.run(opening))
    }
}

struct Teller {
    seat: Seat,
    after: Option<ListCursor>,
}

impl Teller {
    async fn run(mut self, mut opening: Opening) -> End {
        let order = match order_of(&mut opening) {
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
    /// cannot list them now.
    async fn children(&mut self, order: &TreeOrder) -> Result<Option<Listing>, End> {
        let open = Status::ALL.into_iter().filter(|status| !status.is_terminal());
        let list = List {
            statuses: open.collect(),
            parent: Some(ParentRun { id: order.parent.clone(), run: order.run }),
            after: self.after,
            ..List::of(self.seat.execution().address().namespace.clone(), TOLD_COUNT_MAX)
        };
        match self.seat.engine.store.list(list).await {
            Ok(page) => Ok(Some(page)),
            Err(error) if error.is_transient() => {
                self.seat.engine.runtime.sleep(PAUSE).await;
                // An order to leave may have come meanwhile.
                self.committed().await.map_or(Ok(None), Err)
            }
            Err(Error::Closed) => Err(End::Lost(Error::Closed.to_string())),
            Err(error) => Err(End::NotRead(error.to_string())),
        }
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
fn order_of(opening: &mut Opening) -> Result<TreeOrder, String> {
    match opening.first_entry().map_err(|error| error.to_string())?.event {
        Event::Started(start) => {
            serde_json::from_slice(start.input.as_bytes()).map_err(|error| error.to_string())
        }
        other => Err(format!("its journal begins with {}", other.word())),
    }
}
