//! Hints for waiting callers, in this process and in others.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use abide_core::{Ability, Epoch, Message, MessageId, Namespace, Refusal, Route, SessionId};
use abide_store::{Error, ExecutionKey, Notice, Result};
use tokio::sync::Notify;

use crate::floors::{self, Floor, Floors, Line, Marks};

/// Something that others may wait for.
#[derive(Debug)]
pub(crate) enum News {
    /// An execution of this route is ready.
    Ready(Arc<Route>),
    /// An execution of this route has a timer.
    Timer(Arc<Route>),
    /// A wake or a timer was written to a queue.
    Queued(Line, Floor),
    /// A caretaker is to look at an execution of this namespace, now or later.
    Care(Namespace),
    /// A message arrived for what a session holds.
    Mail { session: SessionId, key: i64, epoch: Epoch, message: Box<Message>, previous: Option<MessageId> },
    /// The feed has grown.
    Feed,
}

/// What other processes are told. It says so little that any number of news is one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word {
    /// The first wake and timer of each line that was written to.
    pub(crate) marks: Marks,
    /// Whether there were too many marks to tell.
    pub(crate) is_anywhere: bool,
    pub(crate) is_ready: bool,
    pub(crate) has_mail: bool,
    pub(crate) has_grown: bool,
    pub(crate) has_intake: bool,
}

/// The most lines that one word names.
const MARK_COUNT_MAX: usize = 64;

impl Word {
    fn add(&mut self, marks: Marks) {
        marks.into_iter().for_each(|(line, floor)| floors::mark(&mut self.marks, line, floor));
        if self.marks.len() > MARK_COUNT_MAX {
            self.marks.clear();
            self.is_anywhere = true;
        }
    }
}

#[derive(Default)]
pub(crate) struct Board {
    desks: Mutex<Desks>,
    pub(crate) floors: Floors,
    /// Rung when there is a word for other processes.
    pub(crate) outside: Notify,
}

#[derive(Default)]
struct Desks {
    sessions: HashMap<SessionId, Desk>,
    /// How often the feed has grown, as far as this process knows.
    growth: u64,
    followers: Vec<Waker>,
    word: Word,
    is_closed: bool,
    count_max: usize,
}

/// What a session of this process is told.
#[derive(Default)]
struct Desk {
    /// `None` for a session that was registered elsewhere: it is told everything.
    ability: Option<Arc<Ability>>,
    notices: Vec<Notice>,
    wakers: Vec<Waker>,
    is_over: bool,
}

impl Desk {
    fn tell(&mut self, notice: Notice, count_max: usize) -> Vec<Waker> {
        let is_told = !matches!(notice, Notice::Message { .. }) && self.notices.contains(&notice);
        if !is_told {
            self.notices.push(notice);
        }
        if self.notices.len() > count_max {
            let has_intake = self.notices.contains(&Notice::Intake).then_some(Notice::Intake);
            self.notices = [Notice::Ready, Notice::Changed].into_iter().chain(has_intake).collect();
        }
        std::mem::take(&mut self.wakers)
    }
}

impl Board {
    pub(crate) fn new(count_max: usize) -> Self {
        let desks = Mutex::new(Desks { count_max, ..Desks::default() });
        Self { desks, floors: Floors::default(), outside: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Desks> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self, session: SessionId, ability: Ability) {
        self.lock().sessions.entry(session).or_default().ability = Some(Arc::new(ability));
    }

    /// Returns what a session of this process said when it was registered, if it is not over.
    pub(crate) fn ability(&self, session: SessionId) -> Option<Arc<Ability>> {
        let desks = self.lock();
        desks.sessions.get(&session).filter(|desk| !desk.is_over)?.ability.clone()
    }

    /// Ends the waits of a session that is over.
    pub(crate) fn end(&self, session: SessionId) {
        let woken = {
            let mut desks = self.lock();
            let desk = desks.sessions.entry(session).or_default();
            *desk = Desk { is_over: true, wakers: std::mem::take(&mut desk.wakers), ..Desk::default() };
            std::mem::take(&mut desk.wakers)
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Notifies the sessions of this process, and lets the others know that there is something.
    pub(crate) fn tell(&self, news: Vec<News>) {
        if news.is_empty() {
            return;
        }
        let woken = {
            let mut desks = self.lock();
            let (mut woken, mut marks) = (Vec::new(), Marks::new());
            for one in news {
                match one {
                    News::Queued(line, floor) => floors::mark(&mut marks, line, floor),
                    one => desks.put(one, &mut woken),
                }
            }
            // Before anybody is woken who claims.
            self.floors.lower(&marks);
            desks.word.add(marks);
            woken
        };
        self.outside.notify_one();
        woken.into_iter().for_each(Waker::wake);
    }

    /// Notifies everybody here of a word from outside.
    pub(crate) fn hear(&self, word: &Word) {
        self.floors.lower(&word.marks);
        if word.is_anywhere {
            self.floors.forget();
        }
        let woken = {
            let mut desks = self.lock();
            let (mut woken, count_max) = (Vec::new(), desks.count_max);
            if word.has_grown {
                desks.growth += 1;
                woken.append(&mut desks.followers);
            }
            for desk in desks.sessions.values_mut().filter(|desk| !desk.is_over) {
                if word.is_ready {
                    woken.append(&mut desk.tell(Notice::Ready, count_max));
                }
                if word.has_mail {
                    woken.append(&mut desk.tell(Notice::Changed, count_max));
                }
                if word.has_intake {
                    woken.append(&mut desk.tell(Notice::Intake, count_max));
                }
            }
            woken
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Returns what others have to be told since the last time.
    pub(crate) fn take_word(&self) -> Word {
        std::mem::take(&mut self.lock().word)
    }

    pub(crate) fn wait(self: &Arc<Self>, session: SessionId) -> Wait {
        Wait { board: Arc::clone(self), session }
    }

    pub(crate) fn changed(self: &Arc<Self>) -> Changed {
        let seen = self.lock().growth;
        Changed { board: Arc::clone(self), seen }
    }

    pub(crate) fn close(&self) {
        let woken = {
            let mut desks = self.lock();
            desks.is_closed = true;
            let mut woken = std::mem::take(&mut desks.followers);
            desks.sessions.values_mut().for_each(|desk| woken.append(&mut desk.wakers));
            woken
        };
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Whether a session is to be told.
type Concern = Box<dyn Fn(&Desk) -> bool>;

impl Desks {
    fn put(&mut self, news: News, woken: &mut Vec<Waker>) {
        let count_max = self.count_max;
        let serves = |desk: &Desk, route: &Route| {
            !desk.is_over && desk.ability.as_ref().is_none_or(|ability| ability.serves(route))
        };
        let (notice, is_concerned): (Notice, Concern) = match news {
            News::Ready(route) => {
                self.word.is_ready = true;
                (Notice::Ready, Box::new(move |desk| serves(desk, &route)))
            }
            News::Timer(route) => {
                self.word.is_ready = true;
                (Notice::Changed, Box::new(move |desk| serves(desk, &route)))
            }
            News::Care(namespace) => {
                self.word.is_ready = true;
                let is_of = move |ability: &Arc<Ability>| ability.namespace == namespace;
                let is_concerned = move |desk: &Desk| desk.ability.as_ref().is_none_or(&is_of);
                (Notice::Ready, Box::new(move |desk| !desk.is_over && is_concerned(desk)))
            }
            News::Mail { session, key, epoch, message, previous } => {
                self.word.has_mail = true;
                let key = ExecutionKey(crate::rows::unsigned(key));
                let notice = Notice::Message { key, epoch, message: *message, previous };
                if let Some(desk) = self.sessions.get_mut(&session).filter(|desk| !desk.is_over) {
                    woken.append(&mut desk.tell(notice, count_max));
                }
                return;
            }
            // The floors are lowered at once.
            News::Queued(..) => return,
            News::Feed => {
                self.word.has_grown = true;
                self.growth += 1;
                woken.append(&mut self.followers);
                return;
            }
        };
        for desk in self.sessions.values_mut().filter(|desk| is_concerned(desk)) {
            woken.append(&mut desk.tell(notice.clone(), count_max));
        }
    }
}

/// Takes the notices of a session when there are any. They are taken in the poll that returns them,
/// so dropping the future loses none.
pub(crate) struct Wait {
    board: Arc<Board>,
    session: SessionId,
}

impl Future for Wait {
    type Output = Result<Vec<Notice>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut desks = self.board.lock();
        if desks.is_closed {
            return Poll::Ready(Err(Error::Closed));
        }
        let desk = desks.sessions.entry(self.session).or_default();
        if desk.is_over {
            let what = format!("session {} is not live", self.session);
            return Poll::Ready(Err(Refusal::Unsupported { what }.into()));
        }
        if !desk.notices.is_empty() {
            return Poll::Ready(Ok(std::mem::take(&mut desk.notices)));
        }
        if !desk.wakers.iter().any(|known| known.will_wake(context.waker())) {
            desk.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// Waits until the feed has grown.
pub(crate) struct Changed {
    board: Arc<Board>,
    seen: u64,
}

impl Future for Changed {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut desks = self.board.lock();
        if desks.is_closed {
            return Poll::Ready(Err(Error::Closed));
        }
        if desks.growth > self.seen {
            return Poll::Ready(Ok(()));
        }
        if !desks.followers.iter().any(|known| known.will_wake(context.waker())) {
            desks.followers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch is one word, with the first wake and the first timer of each line.
    #[test]
    fn any_number_of_news_is_one_word() {
        let board = Board::new(9);
        let queued = |since| News::Queued((1, 0), Floor::of_wake(since));
        board.tell(
            (5..300).map(queued).chain([News::Queued((1, 0), Floor::of_timer(7)), News::Feed]).collect(),
        );
        let word = board.take_word();
        assert_eq!(word.marks, [((1, 0), Floor { wake: 5, timer: 7 })].into());
        assert!(word.has_grown && !word.is_anywhere, "{word:?}");
        assert_eq!(board.take_word(), Word::default(), "it is told once");
    }

    #[test]
    fn a_word_of_too_many_lines_names_none() {
        let board = Board::new(9);
        board.tell((0..100).map(|rank| News::Queued((1, rank), Floor::of_wake(5))).collect());
        let word = board.take_word();
        assert!(word.marks.is_empty() && word.is_anywhere, "{word:?}");
    }
}
