//! `forebay plan`: simulates a job with the very policies and schedules that the loader runs, and says what each
//! would give.
//!
//! [`keys`] reads the file, [`input`] makes a scenario of it, [`compare`] simulates; [`table`], [`json`] and [`page`]
//! show what came of it, and [`advice`] says it in a sentence. No decision is made here: that is `policy`, driven by
//! `sim`.

pub mod advice;
pub mod carry_out;
pub mod compare;
pub mod input;
pub mod json;
pub mod keys;
pub mod page;
pub mod reuse;
pub mod table;
pub mod units;

use std::fs;

use compare::PlanComparison;
use forebay_policy::order::Epoch;
use forebay_settings::{environment::Environment, user_error::UserError};
use forebay_sim::{Scenario, ScenarioError};
use input::{Input, Scaled, scaled};
use reuse::Histogram;

use crate::args::PlanArgs;

/// Epochs over which reuse distances are counted.
const REUSE_EPOCHS: u32 = 3;

/// A question and what came of it.
#[derive(Debug)]
pub struct PlanAnswer {
    /// Resolved question.
    pub input: Input,
    /// Factor by which the simulated dataset was smaller than the user's.
    pub factor: u32,
    /// Results of the simulations.
    pub comparison: PlanComparison,
    /// Reuse distances at node 0.
    pub reuse: Histogram,
    /// Advice, in one sentence.
    pub advice: String,
}

impl PlanAnswer {
    /// Steps of an epoch, as simulated.
    pub fn steps(&self) -> u32 {
        self.reuse.epoch_steps
    }
}

/// Answers; gives what is to be printed, and writes the page that was asked for.
///
/// # Errors
/// Bad input: one line that names the key, the value and what is allowed; a page that can't be written.
pub fn plan(args: &PlanArgs, environment: &Environment) -> Result<String, UserError> {
    let samples_max = samples_max(&args.samples)?;
    let input = Input::read(&args.file, &args.set)?;
    let page = args.page.as_ref().map(|page| environment.make_absolute(page));
    let answer = answer(input, samples_max)?;
    if let Some(page) = page {
        fs::write(&page, page::html(&answer)).map_err(|error| UserError::bad_input(format_args!("--page {}: {error}", page.display())))?;
    }
    Ok(if args.json {
        format!("{:#}\n", json::json(&answer))
    } else {
        table::text(&answer)
    })
}

fn samples_max(text: &str) -> Result<u32, UserError> {
    if text == "all" {
        return Ok(u32::MAX);
    }
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| UserError::bad_input(format_args!("--samples {text}: a whole number of at least 1, or all, is allowed")))
}

fn answer(input: Input, samples_max: u32) -> Result<PlanAnswer, UserError> {
    let refuse = |error: ScenarioError| input.refuse(&error);
    input.scenario.check().map_err(refuse)?;
    let Scaled { scenario, factor } = scaled(&input.scenario, samples_max);
    let comparison = compare::compare(&input, &scenario).map_err(refuse)?;
    let reuse = reuse_of(&scenario).map_err(refuse)?;
    let advice = advice::sentence(&comparison, factor);
    Ok(PlanAnswer {
        input,
        factor,
        comparison,
        reuse,
        advice,
    })
}

fn reuse_of(scenario: &Scenario) -> Result<Histogram, ScenarioError> {
    let order = scenario.order()?;
    let epochs: Vec<Epoch> = (0..REUSE_EPOCHS).map(|number| order.epoch(number)).collect();
    let steps = epochs.first().map_or(0, Epoch::iterations);
    Ok(reuse::histogram(
        scenario.dataset.samples,
        steps,
        REUSE_EPOCHS,
        |epoch, iteration, used| {
            if let Some(epoch) = epochs.get(epoch as usize) {
                used.extend((0..scenario.machines.gpus).flat_map(|rank| epoch.batch(rank, iteration)));
            }
        },
    ))
}
