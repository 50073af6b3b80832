//! Rust source as tokens: unlike a syntax tree, they also show the contents of macro calls.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Calls `visit` at every token with the rest of the sequence, outermost groups first. `visit`
/// returns how many tokens to skip together with their contents; zero goes on with the next token.
/// Doc comments are not visited.
pub(super) fn walk(tokens: TokenStream, visit: &mut dyn FnMut(&[TokenTree]) -> usize) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let mut position = 0;
    while let Some(tree) = trees.get(position) {
        let rest = &trees[position..];
        let passed_over = match Attribute::at(rest) {
            Some(attribute) if attribute.name() == Some("doc".to_string()) => attribute.length,
            _ => visit(rest),
        };
        if let (0, TokenTree::Group(group)) = (passed_over, tree) {
            walk(group.stream(), visit);
        }
        position += passed_over.max(1);
    }
}

/// An attribute: `#[name …]` or `#![name …]`.
pub(super) struct Attribute {
    pub(super) content: Vec<TokenTree>,
    /// The number of its tokens.
    pub(super) length: usize,
}

impl Attribute {
    /// Returns the attribute that `trees` starts with.
    pub(super) fn at(trees: &[TokenTree]) -> Option<Attribute> {
        let (group, length) = match trees {
            [hash, TokenTree::Group(group), ..] if is_punct(hash, '#') => (group, 2),
            [hash, bang, TokenTree::Group(group), ..] if is_punct(hash, '#') && is_punct(bang, '!') => {
                (group, 3)
            }
            _ => return None,
        };
        let is_attribute = group.delimiter() == Delimiter::Bracket;
        is_attribute.then(|| Attribute { content: group.stream().into_iter().collect(), length })
    }

    /// Returns the last word of the attribute's path: `test` of `#[tokio::test(…)]`.
    pub(super) fn name(&self) -> Option<String> {
        let path = self
            .content
            .iter()
            .take_while(|tree| !matches!(tree, TokenTree::Group(_)) && !is_punct(tree, '='));
        path.filter_map(word).last()
    }

    /// Returns the contents of the parentheses of `#[name(…)]`.
    pub(super) fn arguments(&self) -> Option<TokenStream> {
        self.content.iter().find_map(|tree| match tree {
            TokenTree::Group(group) => Some(group.stream()),
            _ => None,
        })
    }
}

/// A macro call: `name!(body)` with any kind of brackets.
pub(super) struct MacroCall<'a> {
    pub(super) name: String,
    pub(super) body: &'a Group,
}

impl<'a> MacroCall<'a> {
    /// The number of tokens of a call.
    pub(super) const LENGTH: usize = 3;

    /// Returns the macro call that `trees` starts with.
    pub(super) fn at(trees: &'a [TokenTree]) -> Option<MacroCall<'a>> {
        match trees {
            [name, bang, TokenTree::Group(body), ..] if is_punct(bang, '!') => {
                word(name).map(|name| MacroCall { name, body })
            }
            _ => None,
        }
    }
}

pub(super) fn is_word(tree: &TokenTree, expected: &str) -> bool {
    matches!(tree, TokenTree::Ident(ident) if ident == expected)
}

pub(super) fn is_punct(tree: &TokenTree, expected: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == expected)
}

pub(super) fn line(tree: &TokenTree) -> usize {
    tree.span().start().line
}

fn word(tree: &TokenTree) -> Option<String> {
    match tree {
        TokenTree::Ident(ident) => Some(ident.to_string()),
        _ => None,
    }
}
