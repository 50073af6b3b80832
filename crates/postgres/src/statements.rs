//! What a text of SQL would do to the transaction that it runs in, found before it is sent.
//!
//! This is no parser: it knows where words, strings and comments end, and where a statement does.
//! A text that the server would read otherwise, for example with `standard_conforming_strings`
//! off, is found later: the transaction has another id then.

/// Returns why a transaction step may not run this text.
pub(crate) fn complaint(text: &str) -> Option<String> {
    let (mut statement, mut tokens) = (Statement::default(), Tokens { text, at: 0 });
    loop {
        let token = tokens.next();
        match token {
            Some(token) if !statement.ends_at(token) => continue,
            _ => {}
        }
        let found = statement.complaint();
        if found.is_some() || token.is_none() {
            return found;
        }
        statement = Statement::default();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// A word, or a name without its quotes.
    Word(&'a str),
    Open,
    Close,
    Semicolon,
    Other,
}

/// A statement, as far as it matters here.
#[derive(Default)]
struct Statement<'a> {
    /// The first words.
    words: Vec<&'a str>,
    paren_depth: usize,
    /// The depth inside the body of a function that is written in SQL.
    body_depth: usize,
}

/// No complaint needs more words.
const WORD_COUNT_MAX: usize = 5;

/// The names of savepoints that are abide's own begin so.
const OWN: &str = "abide_";

impl<'a> Statement<'a> {
    /// Takes a token in; returns whether the statement has ended with it.
    fn ends_at(&mut self, token: Token<'a>) -> bool {
        match token {
            Token::Open => self.paren_depth += 1,
            Token::Close => self.paren_depth = self.paren_depth.saturating_sub(1),
            Token::Semicolon => return self.paren_depth == 0 && self.body_depth == 0,
            Token::Word(word) => {
                self.words.extend((self.words.len() < WORD_COUNT_MAX).then_some(word));
                self.follow_body(word);
            }
            Token::Other => {}
        }
        false
    }

    /// Follows `BEGIN ATOMIC … END`, which has semicolons of its own.
    fn follow_body(&mut self, word: &str) {
        if self.paren_depth > 0 || !self.makes_routine() {
            return;
        }
        let is = |other: &str| word.eq_ignore_ascii_case(other);
        if is("BEGIN") || self.body_depth > 0 && is("CASE") {
            self.body_depth += 1;
        } else if is("END") {
            self.body_depth = self.body_depth.saturating_sub(1);
        }
    }

    fn makes_routine(&self) -> bool {
        let kind = if self.is(1, &["OR"]) { 3 } else { 1 };
        self.is(0, &["CREATE"]) && self.is(kind, &["FUNCTION", "PROCEDURE"])
    }

    /// Whether a word, by its place, is one of several.
    fn is(&self, nth: usize, any: &[&str]) -> bool {
        self.words.get(nth).is_some_and(|word| any.iter().any(|other| word.eq_ignore_ascii_case(other)))
    }

    fn complaint(&self) -> Option<String> {
        let does = if self.is(0, &["COMMIT", "END", "ABORT"]) || self.is_whole_rollback() {
            "ends the transaction, which is abide's"
        } else if self.is(0, &["BEGIN", "START"]) {
            "begins a transaction, and the step runs in one"
        } else if self.is(0, &["PREPARE", "DEALLOCATE", "DISCARD"]) {
            "changes what the connection keeps beyond the transaction"
        } else if self.names_own_savepoint() {
            "names a savepoint of abide's"
        } else {
            return None;
        };
        let first = self.words.first()?.to_ascii_uppercase();
        Some(format!("a transaction step may not run {first}: it {does}"))
    }

    /// Whether it undoes more than what came after a savepoint.
    fn is_whole_rollback(&self) -> bool {
        let to = if self.is(1, &["WORK", "TRANSACTION"]) { 2 } else { 1 };
        self.is(0, &["ROLLBACK"]) && !self.is(to, &["TO"])
    }

    fn names_own_savepoint(&self) -> bool {
        let is_own = |word: &&str| word.get(..OWN.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(OWN));
        self.is(0, &["SAVEPOINT", "RELEASE", "ROLLBACK"]) && self.words.iter().any(is_own)
    }
}

struct Tokens<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let rest = &self.text[self.at..];
        let first = rest.chars().next()?;
        let length = match first {
            '\'' => quoted(rest, '\'', false),
            '"' => quoted(rest, '"', false),
            '$' => dollar_quoted(rest),
            '-' if rest.starts_with("--") => rest.find(['\n', '\r']).unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => commented(rest),
            _ if begins_word(first) => word(rest),
            // A letter behind a digit begins no word: `1end` is a number and a word only in old
            // servers, which read `1 end`. Both halves are looked at.
            _ => first.len_utf8(),
        };
        let (token, next) = (&rest[..length], rest[length..].chars().next());
        self.at += length;
        // In E'…', a backslash hides the quote behind it.
        if token.eq_ignore_ascii_case("e") && next == Some('\'') {
            self.at += quoted(&self.text[self.at..], '\'', true);
            return Some(Token::Other);
        }
        Some(match first {
            '(' => Token::Open,
            ')' => Token::Close,
            ';' => Token::Semicolon,
            '"' => Token::Word(token.trim_matches('"')),
            _ if begins_word(first) => Token::Word(token),
            _ => Token::Other,
        })
    }
}

fn begins_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

fn word(text: &str) -> usize {
    let goes_on = |c: char| begins_word(c) || c.is_ascii_digit() || c == '$';
    text.find(|c| !goes_on(c)).unwrap_or(text.len())
}

/// Returns the length of a text in quotes, of which two in a row are one that does not end it.
fn quoted(text: &str, quote: char, has_escapes: bool) -> usize {
    let mut inside = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = inside.next() {
        if has_escapes && c == '\\' {
            inside.next();
        } else if c == quote && inside.next_if(|(_, next)| *next == quote).is_none() {
            return at + quote.len_utf8();
        }
    }
    text.len()
}

/// Returns the length of a text between two equal tags, or of the dollar if it begins none.
fn dollar_quoted(text: &str) -> usize {
    let Some(end) = text[1..].find('$') else { return 1 };
    let (tag, name) = (&text[..end + 2], &text[1..=end]);
    let is_tag = name.is_empty() || name.starts_with(begins_word) && word(name) == name.len();
    if !is_tag {
        return 1;
    }
    text[tag.len()..].find(tag).map_or(text.len(), |inside| inside + 2 * tag.len())
}

/// Returns the length of a comment, which may have others inside.
fn commented(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    loop {
        let rest = &text[at..];
        let step = match rest.chars().next() {
            None => return text.len(),
            Some(_) if rest.starts_with("/*") => {
                depth += 1;
                2
            }
            Some(_) if rest.starts_with("*/") => {
                depth -= 1;
                2
            }
            Some(c) => c.len_utf8(),
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: [&str; 40] = [
        "COMMIT",
        "commit;",
        "  end",
        "END TRANSACTION",
        "ROLLBACK",
        "rollback work",
        "ROLLBACK AND CHAIN",
        "ROLLBACK WORK AND CHAIN",
        "ABORT",
        "BEGIN",
        "BEGIN ATOMIC",
        "START TRANSACTION READ ONLY",
        "PREPARE TRANSACTION 'x'",
        "COMMIT PREPARED 'x'",
        "ROLLBACK PREPARED 'x'",
        "PREPARE p AS SELECT 1",
        "DEALLOCATE ALL",
        "DISCARD PLANS",
        "SELECT 1; COMMIT",
        "SELECT 1;COMMIT;BEGIN",
        ";;COMMIT",
        "-- nothing\nCOMMIT",
        "-- nothing\rCOMMIT",
        "/* a /* b */ c */ COMMIT",
        "/**/COMMIT/**/",
        "COM/**/MIT; COMMIT",
        "SELECT ';'; COMMIT",
        "SELECT 'it''s'; COMMIT",
        "SELECT 'a\\'; COMMIT",
        "SELECT E'a\\'b'; COMMIT",
        "SELECT e'\\\\'; COMMIT",
        "SELECT \";\" FROM t; COMMIT",
        "SELECT $$;$$; COMMIT",
        "SELECT $a$ $$ ; $b$ $a$; COMMIT",
        "SELECT $1; COMMIT",
        "SELECT a$b$c FROM t; COMMIT; SELECT $c$",
        "DO $$ BEGIN END $$; END",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END; COMMIT",
        "SAVEPOINT abide_step",
        "ROLLBACK TO SAVEPOINT \"abide_step\"",
    ];

    const ALLOWED: [&str; 21] = [
        "",
        ";",
        "SELECT 1; SELECT 2;",
        "UPDATE t SET commit = 1",
        "SELECT 'COMMIT; COMMIT'",
        "SELECT 'a''; COMMIT; '''",
        "SELECT E'\\'; COMMIT'",
        "SELECT \"; COMMIT\" FROM t",
        "SELECT $$; COMMIT; $$, $x$; COMMIT $$ ; COMMIT $x$",
        "DO $do$ BEGIN PERFORM 1; END; $do$",
        "-- ; COMMIT",
        "/* ; COMMIT /* ; COMMIT */ ; COMMIT */ SELECT 1",
        "SELECT CASE WHEN TRUE THEN 1 END; SELECT 2",
        "SAVEPOINT mine",
        "ROLLBACK TO mine",
        "ROLLBACK WORK TO SAVEPOINT mine",
        "RELEASE SAVEPOINT mine",
        "CREATE RULE r AS ON INSERT TO t DO ALSO (DELETE FROM u; DELETE FROM v)",
        "CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE 1 WHEN 1 THEN 2 END; SELECT 2; END",
        "CREATE PROCEDURE p() BEGIN ATOMIC DELETE FROM t; END; SELECT 1",
        "größe; 'offen",
    ];

    #[test]
    fn a_statement_that_ends_the_transaction_is_found_wherever_it_hides() {
        for text in REFUSED {
            assert!(complaint(text).is_some(), "{text}");
        }
        for text in ALLOWED {
            assert_eq!(complaint(text), None, "{text}");
        }
    }

    #[test]
    fn any_text_is_read_to_its_end() {
        let pieces =
            ["'", "\"", "$", "$a$", "/*", "*/", "--", "\n", ";", "(", ")", "E'", "\\", "ß", "COMMIT", " "];
        for first in pieces {
            for second in pieces {
                for third in pieces {
                    complaint(&[first, second, third].concat());
                }
            }
        }
    }
}
