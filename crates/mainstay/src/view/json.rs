//! The stream as it is: one line of JSON per event on stdout.

use super::EventReader;
use crate::output::Output;
use crate::wire::EventLine;

pub struct JsonView {
    output: Output,
}

impl JsonView {
    pub fn new(output: Output) -> Self {
        Self { output }
    }
}

impl EventReader for JsonView {
    fn line(&mut self, line: &EventLine) {
        self.output.print(line.to_json());
    }
}
