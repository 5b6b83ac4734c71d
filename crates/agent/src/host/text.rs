//! Sizes as text, for people.

/// Returns a size such as `1.5 GiB`.
#[expect(clippy::cast_precision_loss, reason = "for people to read")]
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 99.95 && value.fract() > 0.0);
    format!("{value:.digits$} {}", UNITS.get(unit).unwrap_or(&"B"))
}

/// Returns two sizes that are compared. If they differ but would read the same, both are exact to the byte.
pub(crate) fn bytes_apart(one: u64, other: u64) -> [String; 2] {
    let short = [one, other].map(rounded_bytes);
    if one != other && short[0] == short[1] {
        [one, other].map(exact_bytes)
    } else {
        short
    }
}

/// Returns a size like [`bytes`] without a final `.0`, which would look like a difference between rounded sizes.
pub(crate) fn rounded_bytes(number: u64) -> String {
    bytes(number).replace(".0 ", " ")
}

/// Returns a size such as `1610612736 bytes`.
pub(crate) fn exact_bytes(number: u64) -> String {
    format!("{number} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(
            [0, 1023, 1024, 1536, 200 << 30, u64::MAX].map(bytes),
            ["0 B", "1023 B", "1 KiB", "1.5 KiB", "200 GiB", "16384 PiB"]
        );
    }

    #[test]
    fn sizes_that_differ_read_differently() {
        assert_eq!(bytes_apart(1 << 30, 3 << 29), ["1 GiB", "1.5 GiB"]);
        assert_eq!(bytes_apart(1 << 30, 1 << 30), ["1 GiB", "1 GiB"]);
        assert_eq!(bytes_apart(1 << 30, (1 << 30) + 1), ["1073741824 bytes", "1073741825 bytes"]);
    }
}
