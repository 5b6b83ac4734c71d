//! The next file that a program opens in a directory, by the order in which it has opened others.
//!
//! Programs go through shards and parts of weights by name, each rank perhaps by every Nth. Between two files nothing
//! is read ahead unless the next one is known before it is opened.

/// Names of the files in a directory, in the orders in which programs go through them.
#[derive(Clone, Debug, Default)]
pub struct FileOrder {
    /// By their bytes, and by the numbers in them.
    orders: [Vec<Vec<u8>>; 2],
}

impl FileOrder {
    /// Orders those of the names that have the extension of `like`.
    pub fn new(mut names: Vec<Vec<u8>>, like: &[u8]) -> Self {
        names.retain(|name| extension(name) == extension(like));
        names.sort_unstable();
        let mut by_number = names.clone();
        by_number.sort_by_cached_key(|name| parts(name));
        Self {
            orders: [names, by_number],
        }
    }

    /// Returns the file that follows the `opened` ones, the oldest first: they are equally far apart in one of the
    /// orders, and it is as far from the last.
    pub fn next(&self, opened: &[&[u8]; 3]) -> Option<&[u8]> {
        self.orders.iter().find_map(|order| next_in(order, opened))
    }
}

fn next_in<'a>(order: &'a [Vec<u8>], opened: &[&[u8]; 3]) -> Option<&'a [u8]> {
    let place = |name: &[u8]| order.iter().position(|other| other == name);
    let [first, second, third] = [place(opened[0])?, place(opened[1])?, place(opened[2])?];
    let step = third.checked_sub(second).filter(|step| *step > 0)?;
    if second.checked_sub(first) != Some(step) {
        return None;
    }
    order.get(third + step).map(Vec::as_slice)
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

    fn next(names: &[String], opened: [&str; 3]) -> Option<String> {
        let names = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        let order = FileOrder::new(names, opened[2].as_bytes());
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
    fn numbers_of_any_length_have_an_order() {
        let long = "9".repeat(60);
        let names = ["1", "22", "333", long.as_str()].map(|name| format!("{name}.bin"));
        assert_eq!(next(&names, ["1.bin", "22.bin", "333.bin"]), Some(format!("{long}.bin")));
    }
}
