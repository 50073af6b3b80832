//! The attribute macros of abide: `#[workflow]`, `#[task]` and `#[abide::test]`.
//!
//! A registered function becomes a unit struct of the same name that implements `abide::Code`. The
//! name itself can thus be passed to `run`, `start` and the builder, and the compiler knows its
//! input and output types.

use proc_macro::TokenStream;
use proc_macro2::{Span, TokenStream as Tokens, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{
    Error, Expr, FnArg, Ident, ItemFn, LitStr, Pat, Result, ReturnType, Token, Type, parse_macro_input,
};

/// Registers an async function as a workflow: `async fn name(ctx: Ctx, input: T) -> Result<U>`.
///
/// Both parameters may be left out. `async fn name(ctx: Ctx)` has the input `()`. `async fn
/// name(input: T)` records nothing but its result, because every other operation needs the `ctx`.
///
/// `#[workflow(name = "…")]` registers it under another name. `#[workflow(strict)]` makes its
/// replay demand the recorded order of operations and every recorded entry.
/// `#[workflow(renamed_from = "…")]` also runs executions that were started under an old name; it
/// may be repeated.
#[proc_macro_attribute]
pub fn workflow(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let arguments = parse_macro_input!(arguments as Arguments);
    let function = parse_macro_input!(item as ItemFn);
    code(&arguments, &function, "Workflow").unwrap_or_else(Error::into_compile_error).into()
}

/// Registers an async function as a task: `async fn name(ctx: Ctx, input: T) -> Result<U>` or
/// `async fn name(input: T) -> …`.
#[proc_macro_attribute]
pub fn task(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let arguments = parse_macro_input!(arguments as Arguments);
    let function = parse_macro_input!(item as ItemFn);
    let made = match arguments.strict {
        true => {
            let message = "remove `strict`: a task has no journal whose order could be checked";
            Err(Error::new_spanned(&function.sig.ident, message))
        }
        false => code(&arguments, &function, "Task"),
    };
    made.unwrap_or_else(Error::into_compile_error).into()
}

/// Runs an async test on an in-memory engine with a virtual clock: `async fn name(abide: Abide)`,
/// with or without a `Result`.
///
/// `#[abide::test(state = App::new())]` shares a value with every workflow and task, as the
/// builder's `state` does; it may be repeated.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let arguments = parse_macro_input!(arguments as TestArguments);
    let function = parse_macro_input!(item as ItemFn);
    virtual_test(&arguments, &function).unwrap_or_else(Error::into_compile_error).into()
}

/// The arguments in the attribute's parentheses.
#[derive(Default)]
struct Arguments {
    name: Option<LitStr>,
    renamed_from: Vec<LitStr>,
    strict: bool,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut arguments = Self::default();
        while !input.is_empty() {
            let word: Ident = input.parse()?;
            let is_repeated = if word == "name" {
                arguments.name.replace(named(input)?).is_some()
            } else if word == "renamed_from" {
                let old = named(input)?;
                let is_repeated = arguments.renamed_from.iter().any(|one| one.value() == old.value());
                arguments.renamed_from.push(old);
                is_repeated
            } else if word == "strict" {
                std::mem::replace(&mut arguments.strict, true)
            } else {
                return Err(Error::new_spanned(
                    &word,
                    "expected `name = \"…\"`, `renamed_from = \"…\"` or `strict`",
                ));
            };
            if is_repeated {
                let message = format!("remove this `{word}`: it was given before");
                return Err(Error::new_spanned(&word, message));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(arguments)
    }
}

/// Reads `= "…"`. `open` checks names too, but does not know the line.
fn named(input: ParseStream<'_>) -> Result<LitStr> {
    input.parse::<Token![=]>()?;
    let name: LitStr = input.parse()?;
    match name.value().trim().is_empty() {
        true => {
            Err(Error::new_spanned(name, "write a name that shows something: executions are found by it"))
        }
        false => Ok(name),
    }
}

/// The arguments of `#[abide::test]`.
struct TestArguments {
    states: Vec<Expr>,
}

impl Parse for TestArguments {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut states = Vec::new();
        while !input.is_empty() {
            let word: Ident = input.parse()?;
            if word != "state" {
                return Err(Error::new_spanned(&word, "expected `state = …`"));
            }
            input.parse::<Token![=]>()?;
            states.push(input.parse()?);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(Self { states })
    }
}

fn code(arguments: &Arguments, function: &ItemFn, kind: &str) -> Result<Tokens> {
    let word = kind.to_lowercase();
    check(function, &word)?;
    check_registered_once(function, &word)?;
    let Parameters { input, call } = parameters(function, &word)?;
    let sig = &function.sig;
    let ident = &sig.ident;
    // `r#move` is Rust's way to write the name `move`.
    let name = arguments.name.as_ref().map_or_else(|| ident.unraw().to_string(), LitStr::value);
    let ReturnType::Type(_, output) = &sig.output else {
        let message = format!("write `-> Result<()>`, or another `Result`: a {word} returns one");
        return Err(Error::new_spanned(sig, message));
    };
    let (output, strict) = (output.to_token_stream(), arguments.strict);
    let kind = Ident::new(kind, ident.span());
    let olds = &arguments.renamed_from;
    Ok(build(function, &Built { ident, name, olds, strict, input, call, output, kind }))
}

/// Everything that the generated code names.
struct Built<'a> {
    ident: &'a Ident,
    name: String,
    olds: &'a [LitStr],
    strict: bool,
    input: Tokens,
    call: Tokens,
    output: Tokens,
    kind: Ident,
}

/// Generates the code. The function goes inside `call`, under a name that no other code uses. There
/// its own name means the struct, as a type and as a value: a workflow can run itself as a child.
/// `let name = …` is a new variable there, as everywhere in Rust where `name` is no unit struct. To
/// allow that, a function of that name hides the struct, and a variable hides the function.
fn build(function: &ItemFn, built: &Built<'_>) -> Tokens {
    let Built { ident, name, olds, strict, input, call, output, kind } = built;
    let vis = &function.vis;
    let docs = function.attrs.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let body = body(function);
    // At the user's own words, so that compiler errors point there.
    let (input_span, output_span) = (here(input.span()), here(output.span()));
    let returns = quote_spanned!(output_span=> <#output as ::abide::__private::Returns>);
    let types = [
        quote_spanned!(input_span=> type Input = #input;),
        quote_spanned!(output_span=> type Output = #returns::Ok;),
    ];
    let item = quote_spanned!(here(ident.span())=> #vis struct #ident;);
    let call = quote_spanned! {here(ident.span())=>
        fn call(
            __abide_ctx: ::abide::Ctx,
            __abide_input: Self::Input,
        ) -> impl ::core::future::Future<Output = ::abide::Result<Self::Output>> + ::core::marker::Send {
            #[allow(dead_code)]
            fn #ident() {}
            #body
            async move {
                let _ = (&__abide_ctx, &__abide_input);
                #returns::into_result(__abide_body(#call).await)
            }
        }
    };
    quote! {
        #(#docs)*
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug)]
        #item

        impl ::abide::Code for #ident {
            #(#types)*
            const NAME: &'static str = #name;
            const RENAMED_FROM: &'static [&'static str] = &[#(#olds),*];
            const KIND: ::abide::Kind = ::abide::Kind::#kind;
            const STRICT: bool = #strict;

            #call
        }

        impl ::abide::#kind for #ident {}

        ::abide::__private::inventory::submit! {
            ::abide::__private::Registered::of::<#ident>(::core::module_path!())
        }
    }
}

/// Returns a span in the user's own code, in which names mean what they mean in generated code.
fn here(span: Span) -> Span {
    Span::call_site().located_at(span)
}

/// Returns the function under its inner name.
fn body(function: &ItemFn) -> ItemFn {
    let ident = &function.sig.ident;
    let mut body = function.clone();
    body.vis = syn::Visibility::Inherited;
    body.attrs.retain(|attribute| !attribute.path().is_ident("doc"));
    body.sig.ident = Ident::new("__abide_body", ident.span());
    // A parameter of that name keeps its meaning.
    if !mentions(
        function.sig.inputs.to_token_stream(),
        &|token| matches!(token, TokenTree::Ident(one) if one == ident),
    ) {
        let itself = syn::parse_quote! {
            #[allow(unused_variables)]
            let #ident = #ident {};
        };
        body.block.stmts.insert(0, itself);
    }
    body
}

/// Whether such a token occurs, at any depth.
fn mentions(tokens: Tokens, is_meant: &dyn Fn(&TokenTree) -> bool) -> bool {
    tokens.into_iter().any(|token| match &token {
        TokenTree::Group(group) => mentions(group.stream(), is_meant),
        other => is_meant(other),
    })
}

fn check(function: &ItemFn, word: &str) -> Result<()> {
    let sig = &function.sig;
    let refused = |at: &dyn ToTokens, message: String| Err(Error::new_spanned(at.to_token_stream(), message));
    if let Some(receiver) = sig.receiver() {
        let message =
            format!("move it out of the `impl` and pass `self` as its input: a {word} is a free function");
        return refused(receiver, message);
    }
    if sig.asyncness.is_none() {
        return refused(&sig.fn_token, format!("write `async fn`: a {word} is an async function"));
    }
    if !sig.generics.params.is_empty() {
        let message =
            format!("write the types themselves: a {word} is registered by its name and cannot be generic");
        return refused(&sig.generics, message);
    }
    Ok(())
}

/// Refuses a second attribute of this kind, which would register the inner function once more.
fn check_registered_once(function: &ItemFn, word: &str) -> Result<()> {
    for attribute in &function.attrs {
        let segments = attribute.path().segments.iter().map(|segment| segment.ident.to_string());
        let path = segments.collect::<Vec<_>>().join("::");
        if ["workflow", "task"].contains(&path.strip_prefix("abide::").unwrap_or(&path)) {
            let message = format!("remove this `#[{path}]`: the function has `#[{word}]` already");
            return Err(Error::new_spanned(attribute, message));
        }
    }
    Ok(())
}

/// The type of the input, and the arguments of the call. Their names are no user's: a workflow that
/// is called `input` is a unit struct, which a parameter of that name would be compared with.
struct Parameters {
    input: Tokens,
    call: Tokens,
}

fn parameters(function: &ItemFn, word: &str) -> Result<Parameters> {
    let inputs = &function.sig.inputs;
    let types: Vec<&Type> = inputs
        .iter()
        .filter_map(|input| match input {
            FnArg::Typed(typed) => Some(&*typed.ty),
            FnArg::Receiver(_) => None,
        })
        .collect();
    if let Some(borrowed) = types.iter().find(|one| matches!(one, Type::Reference(to) if is_ctx(&to.elem))) {
        let message = format!("write `ctx: Ctx`: a {word} owns its context, and lends it to other functions");
        return Err(Error::new_spanned(borrowed, message));
    }
    match types.as_slice() {
        [] => Ok(Parameters { input: quote!(()), call: quote!() }),
        [one] if is_ctx(one) => Ok(Parameters { input: quote!(()), call: quote!(__abide_ctx) }),
        [one] => Ok(Parameters { input: owned(one, word)?, call: quote!(__abide_input) }),
        [first, second] if is_ctx(first) => {
            Ok(Parameters { input: owned(second, word)?, call: quote!(__abide_ctx, __abide_input) })
        }
        [first, ..] if is_ctx(first) => {
            let message = format!(
                "put several inputs into a struct or a tuple: a {word} has one, `(ctx: Ctx, input: T)`"
            );
            Err(Error::new_spanned(inputs, message))
        }
        _ => {
            let message = format!("write `(ctx: Ctx, input: T)`: these are the parameters of a {word}");
            Err(Error::new_spanned(inputs, message))
        }
    }
}

/// Returns the type of an input, which must be owned: the input outlives its process.
fn owned(input: &Type, word: &str) -> Result<Tokens> {
    let tokens = input.to_token_stream();
    if mentions(tokens.clone(), &|token| matches!(token, TokenTree::Punct(one) if one.as_char() == '&')) {
        let message = format!(
            "use an owned type, `String` for `&str`: the input of a {word} is recorded and read again later"
        );
        return Err(Error::new_spanned(input, message));
    }
    Ok(tokens)
}

fn is_ctx(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Ctx"))
}

fn virtual_test(arguments: &TestArguments, function: &ItemFn) -> Result<Tokens> {
    check(function, "test")?;
    let ItemFn { attrs, vis, sig, block, .. } = function;
    let (ident, output) = (&sig.ident, &sig.output);
    let abide: Pat = match sig.inputs.first() {
        None => syn::parse_quote!(_),
        Some(FnArg::Typed(typed)) if sig.inputs.len() == 1 => (*typed.pat).clone(),
        Some(_) => return Err(Error::new_spanned(&sig.inputs, "expected `(abide: Abide)`")),
    };
    let states = &arguments.states;
    Ok(quote! {
        #(#attrs)*
        #[::core::prelude::v1::test]
        #vis fn #ident() #output {
            ::abide::testing::Test::new()#(.state(#states))*.run(|#abide: ::abide::Abide| async move #block)
        }
    })
}
