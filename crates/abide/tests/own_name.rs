//! What the name of a workflow means inside of itself.

use abide::prelude::*;

/// Runs itself as a child, by its own name.
#[workflow]
async fn countdown(ctx: Ctx, from: u32) -> Result<Vec<u32>> {
    let mut counted = match from {
        0 => Vec::new(),
        _ => ctx.run(countdown, from - 1).await?,
    };
    counted.push(from);
    Ok(counted)
}

/// Has a variable of its own name, as sums are often called what they are.
#[workflow]
async fn total(ctx: Ctx, amount: u32) -> Result<u32> {
    let total = ctx.step("double", || async { Ok(amount * 2) }).await?;
    Ok(total)
}

#[workflow]
async fn rate(_ctx: Ctx, rate: u32) -> Result<u32> {
    Ok(rate + 1)
}

/// A task that starts nothing; its name is a type, too.
#[task(name = "other")]
async fn renamed() -> Result<String> {
    Ok(format!("{:?} is called {}", renamed, <renamed as abide::Code>::NAME))
}

#[abide::test]
async fn a_workflow_runs_itself_as_a_child(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(countdown, 3).id("c").await?, [0, 1, 2, 3]);
    Ok(())
}

#[abide::test]
async fn a_variable_or_parameter_may_have_the_name_of_its_workflow(abide: Abide) -> Result<()> {
    assert_eq!(abide.run(total, 4).await?, 8);
    assert_eq!(abide.run(rate, 4).await?, 5);
    assert_eq!(abide.run(renamed, ()).await?, "renamed is called other");
    Ok(())
}

/// Names that generated code could use for its own variables.
mod names_of_variables {
    use super::*;

    #[workflow]
    async fn input(_ctx: Ctx, n: u32) -> Result<u32> {
        Ok(n)
    }

    #[workflow]
    async fn ctx(ctx: Ctx, n: u32) -> Result<u32> {
        ctx.run(input, n + 1).await
    }

    #[abide::test]
    async fn a_workflow_may_be_called_input_or_ctx(abide: Abide) -> Result<()> {
        assert_eq!(abide.run(ctx, 1).await?, 2);
        Ok(())
    }
}

/// A workflow whose name is a word of Rust.
#[workflow]
async fn r#move(ctx: Ctx, distance: u32) -> Result<u32> {
    match distance {
        0 => Ok(0),
        _ => ctx.run(r#move, 0).id("rest").await,
    }
}

#[abide::test]
async fn a_raw_identifier_is_a_name_without_its_prefix(abide: Abide) -> Result<()> {
    assert_eq!(<r#move as abide::Code>::NAME, "move");
    assert_eq!(abide.run(r#move, 1).id("m").await?, 0);
    assert_eq!(abide.start_named::<_, u32>("m", "move", &1).await?.result().await?, 0);
    Ok(())
}
