//! The attribute macros of abide: `#[workflow]`, `#[task]` and `#[abide::test]`.
//!
//! A registered function becomes a unit struct of the same name that implements `abide::Code`. The
//! name itself can thus be passed to `run`, `start` and the builder, and the compiler knows its
//! input and output types.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::{
    Error, Expr, FnArg, Ident, ItemFn, LitStr, Pat, Result, ReturnType, Token, Type, parse_macro_input,
};

/// Registers an async function as a workflow: `async fn name(ctx: Ctx, input: T) -> Result<U>`.
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
        true => Err(Error::new_spanned(&function.sig.ident, "a task has no journal that could be strict")),
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
            if word == "name" {
                input.parse::<Token![=]>()?;
                arguments.name = Some(input.parse()?);
            } else if word == "renamed_from" {
                input.parse::<Token![=]>()?;
                arguments.renamed_from.push(input.parse()?);
            } else if word == "strict" {
                arguments.strict = true;
            } else {
                return Err(Error::new_spanned(
                    &word,
                    "expected `name = \"…\"`, `renamed_from = \"…\"` or `strict`",
                ));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(arguments)
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
    check(function)?;
    let Parameters { input, call } = parameters(function)?;
    let sig = &function.sig;
    let ident = &sig.ident;
    let name = arguments.name.as_ref().map_or_else(|| ident.to_string(), LitStr::value);
    let ReturnType::Type(_, output) = &sig.output else {
        return Err(Error::new_spanned(sig, "it must return `Result<T>`"));
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

/// Generates the code. The function goes inside `call`, where its name does not clash with that of
/// the struct.
fn build(function: &ItemFn, built: &Built<'_>) -> Tokens {
    let Built { ident, name, olds, strict, input, call, output, kind } = built;
    let vis = &function.vis;
    let docs = function.attrs.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let mut inner = function.clone();
    inner.vis = syn::Visibility::Inherited;
    inner.attrs.retain(|attribute| !attribute.path().is_ident("doc"));
    quote! {
        #(#docs)*
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug)]
        #vis struct #ident;

        impl ::abide::Code for #ident {
            type Input = #input;
            type Output = <#output as ::abide::__private::Returns>::Ok;
            const NAME: &'static str = #name;
            const RENAMED_FROM: &'static [&'static str] = &[#(#olds),*];
            const KIND: ::abide::Kind = ::abide::Kind::#kind;
            const STRICT: bool = #strict;

            fn call(
                ctx: ::abide::Ctx,
                input: Self::Input,
            ) -> impl ::core::future::Future<Output = ::abide::Result<Self::Output>> + ::core::marker::Send {
                #inner
                async move {
                    let _ = (&ctx, &input);
                    #ident(#call).await.map_err(::core::convert::Into::into)
                }
            }
        }

        impl ::abide::#kind for #ident {}

        ::abide::__private::inventory::submit! {
            ::abide::__private::Registered::of::<#ident>(::core::module_path!())
        }
    }
}

fn check(function: &ItemFn) -> Result<()> {
    let sig = &function.sig;
    if sig.asyncness.is_none() {
        return Err(Error::new_spanned(sig.fn_token, "it must be an `async fn`"));
    }
    if !sig.generics.params.is_empty() {
        return Err(Error::new_spanned(&sig.generics, "it cannot be generic: it is registered by name"));
    }
    Ok(())
}

/// The type of the input, and the arguments of the call, made of `ctx` and `input`.
struct Parameters {
    input: Tokens,
    call: Tokens,
}

fn parameters(function: &ItemFn) -> Result<Parameters> {
    let mut types = Vec::new();
    for argument in &function.sig.inputs {
        match argument {
            FnArg::Typed(typed) => types.push((&*typed.pat, &*typed.ty)),
            FnArg::Receiver(receiver) => {
                return Err(Error::new_spanned(receiver, "it must be a free function"));
            }
        }
    }
    match types.as_slice() {
        [] => Ok(Parameters { input: quote!(()), call: quote!() }),
        [(_, one)] if is_ctx(one) => Ok(Parameters { input: quote!(()), call: quote!(ctx) }),
        [(_, one)] => Ok(Parameters { input: one.to_token_stream(), call: quote!(input) }),
        [(_, first), (_, second)] if is_ctx(first) => {
            Ok(Parameters { input: second.to_token_stream(), call: quote!(ctx, input) })
        }
        _ => Err(Error::new_spanned(
            &function.sig.inputs,
            "expected `(ctx: Ctx, input: T)`; several inputs go into a struct or a tuple",
        )),
    }
}

fn is_ctx(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Ctx"))
}

fn virtual_test(arguments: &TestArguments, function: &ItemFn) -> Result<Tokens> {
    check(function)?;
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
