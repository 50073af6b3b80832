//! Executions from other stores.

use std::collections::HashMap;

use abide_core::{Execution, codec};
use abide_store::{ExecutionKey, Import, Imported, Record};

use super::alone::Work;
use super::letter;
use crate::board::News;
use crate::connection::Connection;
use crate::error::Stop;
use crate::facts::{Facts, Questions};
use crate::rows;
use crate::seal::sealed;
use crate::shared::Shared;
use crate::sheet::{InboxRow, Newborn, Sheet, TagRow};
use crate::sql;
use crate::target::Question;

/// The most records that one row of an imported journal has.
const ROW_COUNT_MAX: usize = 128;

pub(crate) async fn import(shared: &Shared, import: &Import) -> Result<Imported, Stop> {
    let now = shared.now();
    import.settle(shared.bounds(), now)?;
    let mut work = Work::begin(shared, vec![import.execution.route()]).await?;
    match work.import(import).await {
        Ok(imported) => work.commit(imported).await,
        Err(stop) => Err(work.undo(stop).await),
    }
}

impl Work<'_> {
    async fn import(&mut self, import: &Import) -> Result<Imported, Stop> {
        let address = import.address();
        let (ns, id) = (address.namespace.as_str(), address.id.as_str());
        if let Some(row) = self.connection.maybe_row(sql::KEY_BY_ID, &[&ns, &id]).await? {
            let key = row.try_get(0)?;
            let is_known = self.is_known(key, import).await?;
            let known = Imported::Known(ExecutionKey(rows::unsigned(key)));
            return if is_known { Ok(known) } else { Err(import.conflict().into()) };
        }
        let first = import.runs.first().and_then(|run| run.first());
        let first = first.ok_or_else(|| Stop::corrupt("an import without a beginning"))?.entry()?;
        let began = first.began().ok_or_else(|| Stop::corrupt("an import without a beginning"))?;
        let mut questions = Questions::default();
        questions.key_count = 1;
        let parent = letter::parent_address(address, began.start);
        let parent = parent.map(|parent| questions.ask(Question::of_address(parent)));
        let mut facts = questions.answer(self.shared, &self.connection, self.now).await?;
        let key = facts.keys.pop().ok_or(Stop::Raced)?;
        let parent = parent.and_then(|parent| facts.targets[parent].as_ref()).map(|parent| parent.key);
        let sheet = self.imported(import, (key, parent))?;
        let written = sheet.write(&self.connection, self.now.as_micros()).await?;
        if !written.keys.contains(&key) {
            return Err(Stop::Raced);
        }
        let settled = import.settle(self.shared.bounds(), self.now)?;
        let (run, takeovers) = (rows::run_number(import.execution.run()), import.takeover_count as i32);
        let (epoch, version) = (rows::integer(import.epoch.0), rows::integer(import.version.0));
        let (created_at, finished_at) = (began.at.as_micros(), rows::micros(settled.finished_at));
        let parameters: [crate::sheet::Parameter<'_>; 7] =
            [&key, &run, &epoch, &version, &takeovers, &created_at, &finished_at];
        self.connection.change(sql::IMPORT_ROW, &parameters).await?;
        Ok(Imported::New(ExecutionKey(rows::unsigned(key))))
    }

    /// Returns the rows of an execution that was imported.
    fn imported(&mut self, import: &Import, (key, parent): (i64, Option<i64>)) -> Result<Sheet, Stop> {
        let (address, now) = (import.address(), self.now);
        let settled = import.settle(self.shared.bounds(), now)?;
        let first = import.runs[0][0].entry()?;
        let start = first.began().ok_or_else(|| Stop::corrupt("an import without a beginning"))?.start;
        let route = import.execution.route();
        let number = self.shared.routes.number(&route).ok_or(Stop::Raced)?;
        let (summary, rank) = (&settled.summary, rows::rank(import.execution.priority()));
        let (mut facts, mut sheet) = (Facts::default(), Sheet::default());
        sheet.newborns.push(Newborn {
            key,
            gate: None,
            strict: true,
            ns: address.namespace.as_str().to_owned(),
            id: address.id.as_str().to_owned(),
            route: number,
            rank,
            session: None,
            epoch: 0,
            status: summary.status as i16,
            listens: rows::listens_number(summary.listens),
            wake_at: rows::micros(summary.wake_at),
            care_at: rows::micros(summary.care_at),
            parent,
            parent_run: start.parent.as_ref().map(|parent| rows::run_number(parent.run)),
            is_child: start.parent.is_some(),
            tags: (!start.tags.is_empty()).then(|| sealed(key, &codec::encode(&start.tags))),
            summary: sealed(key, &codec::encode(summary)),
            state: sealed(key, &codec::encode::<Execution>(&import.execution)),
        });
        for tag in &start.tags {
            let (of, value) = (tag.key.as_str().to_owned(), tag.value.as_str().to_owned());
            sheet.tags.push(TagRow { execution: key, key: of, value });
        }
        let row = |id: &str, sort: i16, body| {
            let id = id.to_owned();
            InboxRow { execution: key, gate: Some(key), strict: true, id, sort, body }
        };
        for id in &settled.read {
            sheet.inbox.push(row(id.as_str(), 0, None));
        }
        for message in &import.unread {
            let body = Some(sealed(key, &codec::encode(message)));
            sheet.inbox.push(row(message.id.as_str(), rows::sort_number(message.body.sort()), body));
        }
        let mut desk = self.desk(&mut facts, &mut sheet);
        for (records, run) in import.runs.iter().zip(1..) {
            for part in records.chunks(ROW_COUNT_MAX) {
                desk.append(key, (Some(run), 0), part);
            }
        }
        if settled.is_ready {
            desk.wake((key, Some(key)), (number, rank), "", rows::NEEDS_NOTHING);
        }
        desk.time((number, rank), summary.wake_at);
        let route = std::sync::Arc::new(route);
        let namespace = address.namespace.clone();
        desk.news.push(if settled.is_ready { News::Ready(route) } else { News::Timer(route) });
        desk.news.push(News::Care(namespace));
        Ok(sheet)
    }

    /// Whether the execution with this key is the imported one, as it was or later.
    async fn is_known(&self, key: i64, import: &Import) -> Result<bool, Stop> {
        let mut journals: HashMap<u32, Vec<Record>> = HashMap::new();
        for (records, run) in import.runs.iter().zip(1..) {
            journals.insert(run, journal(&self.connection, key, (run, records.len())).await?);
        }
        let mut known = Vec::new();
        for message in &import.unread {
            let found = self.connection.rows(sql::KNOWN_MESSAGE, &[&key, &message.id.as_str()]).await?;
            if !found.is_empty() {
                known.push(&message.id);
            }
        }
        let page = |run: u32, from: u64| {
            let records = journals.get(&run).map(Vec::as_slice).unwrap_or_default();
            Ok::<_, Stop>(records.iter().filter(|record| record.seq >= from).cloned().collect())
        };
        import.is_known(page, |id| Ok(known.contains(&id)))
    }
}

/// Reads the first records of a run.
async fn journal(connection: &Connection, key: i64, (run, count): (u32, usize)) -> Result<Vec<Record>, Stop> {
    let (mut records, run) = (Vec::<Record>::new(), rows::run_number(run));
    while records.len() < count {
        let from = records.len() as i64 + 1;
        let found = connection.rows(sql::JOURNAL, &[&key, &run, &from, &1_024_i64, &(1_i64 << 20)]).await?;
        let before = records.len();
        for row in &found {
            let page = rows::unpacked(key, row.try_get(0)?, row.try_get(1)?)?;
            records.extend(page.into_iter().filter(|record| record.seq >= rows::unsigned(from)));
        }
        if records.len() == before {
            break;
        }
    }
    Ok(records)
}
