//! The next file that a program opens in a directory, by the order in which it has opened others.
//!
//! Programs go through shards and parts of weights by name, each rank perhaps by every Nth. Between two files nothing
//! is read ahead unless the next one is known before it is opened. Three files that are equally far apart tell it. One
//! is enough where its name says that it is a part of weights: `model-00002-of-00008.safetensors`.

/// Most files that are opened ahead of a program.
const AHEAD_FILES_MAX: usize = 2;

/// Returns how many files of a directory may be opened ahead of a program that has opened so many of them. After a
/// single one the next is but a guess. Where no tier has room the page cache keeps them: one at a time.
pub const fn files_ahead(opened: usize, has_room: bool) -> usize {
    if opened > 1 && has_room { AHEAD_FILES_MAX } else { 1 }
}

/// Names of the files in a directory, in the orders in which programs go through them.
#[derive(Clone, Debug, Default)]
pub struct FileOrder {
    /// By their bytes, and by the numbers in them.
    orders: [Vec<Vec<u8>>; 2],
}

impl FileOrder {
    /// Orders those of the names that have the extension of `like`; if it is a part of something, those of all parts.
    pub fn new(mut names: Vec<Vec<u8>>, like: &[u8]) -> Self {
        names.retain(|name| extension(name) == extension(like) && set_of(name) == set_of(like));
        names.sort_unstable();
        let mut by_number = names.clone();
        by_number.sort_by_cached_key(|name| parts(name));
        Self {
            orders: [names, by_number],
        }
    }

    /// Returns the file that follows the `opened` ones, the oldest first: they are equally far apart in one of the
    /// orders, and it is as far from the last. After a single one it is the neighbour.
    pub fn next(&self, opened: &[&[u8]]) -> Option<&[u8]> {
        self.orders.iter().find_map(|order| next_in(order, opened))
    }
}

/// Returns how many files a program has to open in a directory until the one after `name`, which is the last of them,
/// is known well enough. `has_known_format` tells whether programs mostly read all of such files.
pub fn opens_needed(name: &[u8], has_known_format: bool) -> usize {
    if has_known_format && set_of(name).is_some() { 1 } else { 3 }
}

/// Returns the text before the number of a part, and the number of all parts; `None` if the name is not that of a part.
fn set_of(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let stem = &name[..name.len() - extension(name).len()];
    let without_number = |text: &[u8]| text.len() - text.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (before, of_all) = stem.split_at(without_number(stem));
    let part = before.strip_suffix(b"-of-")?;
    let (before, number) = part.split_at(without_number(part));
    (!of_all.is_empty() && !number.is_empty()).then_some((before, of_all))
}

fn next_in<'a>(order: &'a [Vec<u8>], opened: &[&[u8]]) -> Option<&'a [u8]> {
    let place = |name: &[u8]| order.iter().position(|other| other == name);
    let places: Vec<_> = opened.iter().map(|name| place(name)).collect::<Option<_>>()?;
    let mut steps = places.windows(2).map(|pair| pair[1].checked_sub(pair[0]).filter(|step| *step > 0));
    let step = steps.next().unwrap_or(Some(1))?;
    if steps.any(|other| other != Some(step)) {
        return None;
    }
    order.get(places.last()? + step).map(Vec::as_slice)
}

fn extension(name: &[u8]) -> &[u8] {
    name.iter().rposition(|byte| *byte == b'.').map_or(b"", |at| &name[at..])
}

/// Part of a name: numbers order by value, all else by bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NamePart {
    Number(u128),
    Text(Vec<u8>),
}

fn parts(name: &[u8]) -> Vec<NamePart> {
    name.chunk_by(|one, next| one.is_ascii_digit() == next.is_ascii_digit())
        .map(|part| {
            let digits = std::str::from_utf8(part).ok();
            match digits.and_then(|digits| digits.parse().ok()) {
                Some(number) => NamePart::Number(number),
                None => NamePart::Text(part.to_vec()),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next<const N: usize>(names: &[String], opened: [&str; N]) -> Option<String> {
        let names = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        let order = FileOrder::new(names, opened[N - 1].as_bytes());
        order
            .next(&opened.map(str::as_bytes))
            .map(|name| String::from_utf8(name.to_vec()).unwrap())
    }

    #[test]
    fn a_program_that_goes_by_name_opens_the_next_name() {
        let names: Vec<String> = (1..=8).map(|n| format!("model-{n:05}-of-00008.safetensors")).collect();
        let name = |n: usize| names[n - 1].as_str();
        assert_eq!(next(&names, [name(1), name(2), name(3)]).as_deref(), Some(name(4)));
        assert_eq!(
            next(&names, [name(2), name(4), name(6)]).as_deref(),
            Some(name(8)),
            "every second one"
        );
        assert_eq!(next(&names, [name(6), name(7), name(8)]), None, "the last");
        assert_eq!(next(&names, [name(3), name(2), name(1)]), None, "backwards");
        assert_eq!(next(&names, [name(1), name(2), name(4)]), None);
        assert_eq!(next(&names, [name(2), name(2), name(2)]), None);
    }

    #[test]
    fn numbers_without_zeros_before_them_are_followed_in_both_orders() {
        let names: Vec<String> = (0..12).map(|n| format!("{n}.tar")).chain(["9.json".into()]).collect();
        assert_eq!(next(&names, ["7.tar", "8.tar", "9.tar"]).as_deref(), Some("10.tar"));
        assert_eq!(next(&names, ["1.tar", "10.tar", "11.tar"]).as_deref(), Some("2.tar"));
        assert_eq!(next(&names, ["8.tar", "9.tar", "gone.tar"]), None);
    }

    #[test]
    fn parts_of_weights_are_followed_from_the_first_on() {
        let names: Vec<String> = (1..=8).map(|n| format!("model-{n:05}-of-00008.safetensors")).collect();
        let name = |n: usize| names[n - 1].as_str();
        assert_eq!(next(&names, [name(1)]).as_deref(), Some(name(2)));
        assert_eq!(next(&names, [name(1), name(3)]).as_deref(), Some(name(5)));
        assert_eq!(next(&names, [name(1), name(5)]), None, "there is no ninth");
        assert_eq!(next(&names, [name(8)]), None, "the last");
        assert_eq!(next(&names, [name(2), name(1)]), None, "backwards");
        assert_eq!(opens_needed(name(1).as_bytes(), true), 1);
        assert_eq!(opens_needed(name(1).as_bytes(), false), 3, "of data, which come in any order");
        let two_sets = ["a-1-of-2.bin", "a-2-of-2.bin", "a.fp16-1-of-2.bin", "a.fp16-2-of-2.bin", "b.bin"].map(str::to_owned);
        assert_eq!(next(&two_sets, ["a-1-of-2.bin"]).as_deref(), Some("a-2-of-2.bin"));
        assert_eq!(next(&two_sets, ["a-2-of-2.bin"]), None, "the next name is a part of another set");
        assert_eq!(next(&two_sets, ["b.bin"]), None);
        for name in ["a-of-2.bin", "1-of-.bin", "-of-2.bin", "1.bin", ""] {
            assert_eq!(opens_needed(name.as_bytes(), true), 3, "{name}");
        }
    }

    #[test]
    fn two_files_are_ahead_of_a_program_that_has_shown_its_order() {
        assert_eq!([files_ahead(1, true), files_ahead(2, true), files_ahead(2, false)], [1, 2, 1]);
    }

    #[test]
    fn numbers_of_any_length_have_an_order() {
        let long = "9".repeat(60);
        let names = ["1", "22", "333", long.as_str()].map(|name| format!("{name}.bin"));
        assert_eq!(next(&names, ["1.bin", "22.bin", "333.bin"]), Some(format!("{long}.bin")));
    }
}
