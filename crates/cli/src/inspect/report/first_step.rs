//! The part of the page about the time to the first step.

use forebay_settings::text;

use crate::{
    page::Page,
    run::first_step::{FirstStep, Phase},
};

/// Writes the section; nothing for a run of which nothing was seen, or of an earlier version.
pub fn section(page: &mut Page, first_step: Option<&FirstStep>) {
    let Some(first_step) = first_step else { return };
    page.section(
        "Time to the first step",
        "Phases overlap, and a program may work between them. Files belong to a phase by their names, and count if they were opened before the first \
         step. Bytes are sizes of these files. Waits are those of opens at the source, the sum over all processes.",
    );
    page.words(&format!("First step: {}.", first_step.headline()));
    page.table(
        ["from", "to", "opens", "from the source", "from tiers", "opens waited"],
        first_step.phases.iter().map(|phase| (phase.name.text().to_owned(), cells(phase))),
    );
    if let Some(advice) = &first_step.advice {
        page.words(&format!("Sooner: {advice}."));
    }
}

fn cells(phase: &Phase) -> [String; 6] {
    [
        text::time_text(phase.begin_s),
        phase.end_s.map_or_else(|| "not told".into(), text::time_text),
        text::count(phase.opens()),
        text::bytes(phase.source.bytes),
        text::bytes(phase.from_tiers().bytes),
        text::time_text(phase.waited_s),
    ]
}
