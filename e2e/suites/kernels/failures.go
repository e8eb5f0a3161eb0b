package main

import (
	"fmt"
	"io"
	"regexp"
)

// failures prints what the tests of one part say of their failures: each test that fails with its messages, and the stacks of a panic, a
// data race or a goroutine that is left.
type failures struct {
	out io.Writer
	// test is the one that speaks.
	test string
	// said has the lines of each test that has not ended.
	said map[string][]string
	// raw is how many more lines are printed, whatever they say.
	raw int
}

const (
	// saidLines are as many of one test's lines as are kept.
	saidLines = 20
	// rawLines are as many as a stack needs.
	rawLines = 40
)

var (
	// result is what go test -v says of a test, or of a part of one.
	result = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+)`)
	// speaks names the test that says the next lines.
	speaks = regexp.MustCompile(`^=== (?:RUN|PAUSE|CONT|NAME) +(\S+)`)
	// stack begins what no test says.
	stack = regexp.MustCompile(`^(panic|fatal error|FAIL): |^WARNING: DATA RACE`)
)

// line takes the next line of the part's output.
func (f *failures) line(line string) {
	if stack.MatchString(line) {
		f.raw = rawLines
	}
	if f.raw > 0 {
		f.raw--
		fmt.Fprintln(f.out, line)
		return
	}
	if found := speaks.FindStringSubmatch(line); found != nil {
		f.test = found[1]
	} else if found := result.FindStringSubmatch(line); found != nil {
		f.ended(line, found[1], found[2])
	} else if f.test != "" && len(f.said[f.test]) < saidLines {
		f.said[f.test] = append(f.said[f.test], line)
	}
}

// ended takes the line with the result of a test.
func (f *failures) ended(line, result, test string) {
	if result == "FAIL" {
		fmt.Fprintln(f.out, line)
		for _, said := range f.said[test] {
			fmt.Fprintln(f.out, said)
		}
	}
	delete(f.said, test)
	f.test = ""
}
