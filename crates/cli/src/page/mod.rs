//! Pages: one HTML file each with everything in it, readable in light and dark. It fetches nothing and runs nothing.
//! The commands fill the pages; this module has the parts that all pages share.

pub mod plots;

use std::fmt::{Display, Write as _};

use plots::RGBColor;

/// The colours of `plots`, in light and in dark.
const STYLE: &str = include_str!("page.css");
/// For a browser: nothing may be fetched or run, whatever is in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// A page that is being written.
#[derive(Debug)]
pub struct Page {
    html: String,
}

impl Page {
    /// A page with its title, the sentence that matters most, and facts.
    pub fn new(title: &str, lead: &str, facts: impl IntoIterator<Item = String>) -> Self {
        let title = escaped(title);
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p class=\"lead\">{}</p>\n<ul>\n",
            escaped(lead)
        );
        for fact in facts {
            let _ = writeln!(html, "<li>{}</li>", escaped(&fact));
        }
        html.push_str("</ul>\n");
        Self { html }
    }

    /// Begins a section.
    pub fn section(&mut self, title: &str, words: &str) {
        let _ = writeln!(self.html, "<h2>{}</h2>", escaped(title));
        self.words(words);
    }

    /// Begins a part of a section.
    pub fn part(&mut self, title: &str) {
        let _ = writeln!(self.html, "<h3>{}</h3>", escaped(title));
    }

    /// A paragraph; none for no words.
    pub fn words(&mut self, words: &str) {
        if !words.is_empty() {
            let _ = writeln!(self.html, "<p>{}</p>", escaped(words));
        }
    }

    /// A table: the heads of its columns after the first, then rows, each with its label.
    pub fn table<Cell: Display>(
        &mut self,
        heads: impl IntoIterator<Item = impl Display>,
        rows: impl IntoIterator<Item = (String, impl IntoIterator<Item = Cell>)>,
    ) {
        self.html.push_str("<div class=\"wide\"><table>\n<tr><th></th>");
        for head in heads {
            let _ = write!(self.html, "<th>{}</th>", escaped(&head.to_string()));
        }
        self.html.push_str("</tr>\n");
        for (label, cells) in rows {
            let _ = write!(self.html, "<tr><th>{}</th>", escaped(&label));
            for cell in cells {
                let _ = write!(self.html, "<td>{}</td>", escaped(&cell.to_string()));
            }
            self.html.push_str("</tr>\n");
        }
        self.html.push_str("</table></div>\n");
    }

    /// Content that a reader has to unfold.
    pub fn details(&mut self, title: &str, inside: impl FnOnce(&mut Self)) {
        let _ = writeln!(self.html, "<details><summary>{}</summary>", escaped(title));
        inside(self);
        self.html.push_str("</details>\n");
    }

    /// Plots side by side, each at the width that the page has for it.
    pub fn figures(&mut self, svgs: &[String]) {
        self.html.push_str("<div class=\"plots\">\n");
        for svg in svgs {
            let _ = writeln!(self.html, "<figure>{svg}</figure>");
        }
        self.html.push_str("</div>\n");
    }

    /// Legend of the colours.
    pub fn legend<'a>(&mut self, names: impl IntoIterator<Item = (&'a str, RGBColor)>) {
        self.html.push_str("<p class=\"legend\">");
        for (name, RGBColor(red, green, blue)) in names {
            let _ = write!(
                self.html,
                "<span><svg width=\"12\" height=\"12\"><rect width=\"12\" height=\"12\" fill=\"#{red:02X}{green:02X}{blue:02X}\"/></svg> {}</span> ",
                escaped(name)
            );
        }
        self.html.push_str("</p>\n");
    }

    /// The whole page.
    pub fn end(mut self) -> String {
        self.html.push_str("</body>\n</html>\n");
        self.html
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{plots::SERIES, *};

    #[test]
    fn every_colour_has_its_rule_in_dark() {
        for colour in SERIES {
            let name = format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
            let (_, dark) = STYLE.split_once("prefers-color-scheme: dark").unwrap();
            assert!(
                dark.contains(&format!("[fill=\"{name}\"]")) && dark.contains(&format!("[stroke=\"{name}\"]")),
                "{name}"
            );
        }
    }

    #[test]
    fn text_is_escaped_wherever_it_stands() {
        let bad = "a<b> & \"c\"";
        let mut page = Page::new(bad, bad, [bad.to_owned()]);
        page.section(bad, bad);
        page.part(bad);
        page.table([bad], [(bad.to_owned(), [bad])]);
        page.details(bad, |page| page.words(bad));
        page.legend([(bad, SERIES[0])]);
        let html = page.end();
        assert_eq!(html.matches("a&lt;b&gt; &amp; &quot;c&quot;").count(), 13, "{html}");
        assert!(!html.contains("<b>"));
    }
}
