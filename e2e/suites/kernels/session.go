package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

// passed is how the result of a part begins that has not failed.
const passed = "passed"

// session is what the console of a machine says. Lines that begin with @ are of init.sh.
type session struct {
	parts    []part
	outcomes []outcome
	// failures gets what the parts that fail have said.
	failures io.Writer
	// ended says that the machine came to its end.
	ended bool
	// last are the last lines.
	last []string

	kernel  string
	current *part
	begun   time.Time
	// output is that of the current part.
	output bytes.Buffer
}

// keptLines are as many as help where a machine ends too early.
const keptLines = 40

func (s *session) read(console io.Reader) error {
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		s.last = append(s.last, line)
		if len(s.last) > keptLines {
			s.last = slices.Delete(s.last, 0, 1)
		}
		if err := s.line(line); err != nil {
			return err
		}
	}
	if s.current != nil {
		fmt.Fprint(s.failures, s.output.String())
		s.note("FAILED (it did not end)")
	}
	return lines.Err()
}

func (s *session) line(line string) error {
	said, found := strings.CutPrefix(line, "@")
	if !found {
		if s.current != nil {
			fmt.Fprintln(&s.output, line)
		}
		return nil
	}
	words := append(strings.Fields(said), "", "", "")
	switch words[0] {
	case "kernel":
		s.kernel = words[1]
	case "begin":
		var number int
		if _, err := fmt.Sscan(words[1], &number); err != nil || number >= len(s.parts) {
			return fmt.Errorf("the console says %q", line)
		}
		s.current, s.begun = &s.parts[number], time.Now()
		s.output.Reset()
	case "end":
		if s.current == nil {
			return fmt.Errorf("the console says %q", line)
		}
		s.note(s.judge(words[1]))
	case "off":
		s.ended = true
	}
	return nil
}

// note adds the outcome of the current part.
func (s *session) note(result string) {
	o := outcome{kernel: s.kernel, part: s.current.name, took: time.Since(s.begun), result: result}
	fmt.Printf("%s: %s %s in %.0f s\n", o.kernel, o.part, o.result, o.took.Seconds())
	s.outcomes = append(s.outcomes, o)
	s.current = nil
}

// ended is the line of a test that has ended; the lines of subtests are indented.
var ended = regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\S+) `)

// judge says what became of the current part, whose program ended with a status. It prints what a part that failed has said.
func (s *session) judge(status string) string {
	results, count := map[string]string{}, map[string]int{}
	var names []string
	for _, match := range ended.FindAllStringSubmatch(s.output.String(), -1) {
		result, name := match[1], match[2]
		results[name] = result
		count[result]++
		if result == "FAIL" {
			names = append(names, name)
		}
	}
	for _, name := range s.current.tests {
		if results[name] == "" || results[name] == "SKIP" {
			names = append(names, name+" did not run")
		}
	}
	slices.Sort(names)
	if status != "0" || len(names) > 0 || count["PASS"] == 0 {
		fmt.Fprint(s.failures, s.output.String())
		return fmt.Sprintf("FAILED (status %s): %s", status, strings.Join(names, ", "))
	}
	if count["SKIP"] > 0 {
		return fmt.Sprintf("%s %d tests, %d skipped", passed, count["PASS"], count["SKIP"])
	}
	return fmt.Sprintf("%s %d tests", passed, count["PASS"])
}
