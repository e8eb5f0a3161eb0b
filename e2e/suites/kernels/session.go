package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
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
	// ended says that the machine came to its end.
	ended bool
	// last are the last lines.
	last []string

	kernel  string
	current *part
	begun   time.Time
	// tests are the results of the current part's tests, by name, and figure is what they
	// measured.
	tests    map[string]string
	figure   string
	failures *failures
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
		s.note("FAILED (it did not end)")
	}
	return lines.Err()
}

func (s *session) line(line string) error {
	if s.current != nil && s.current.figure != "" {
		if found := s.current.pattern().FindStringSubmatch(line); found != nil {
			s.figure = ": " + found[1]
		}
	}
	if found := result.FindStringSubmatch(line); found != nil && s.current != nil {
		s.tests[found[2]] = found[1]
	}
	said, found := strings.CutPrefix(line, "@")
	if !found {
		if s.current != nil {
			s.failures.line(line)
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
		s.current, s.begun, s.tests = &s.parts[number], time.Now(), map[string]string{}
		s.figure, s.failures = "", &failures{out: os.Stdout, said: map[string][]string{}}
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

// judge says what became of the current part, whose program ended with a status.
func (s *session) judge(status string) string {
	count := map[string]int{}
	var names []string
	for name, result := range s.tests {
		if !strings.Contains(name, "/") {
			count[result]++
			if result == "FAIL" {
				names = append(names, name)
			}
		}
	}
	for _, name := range s.current.tests {
		if s.tests[name] == "" || s.tests[name] == "SKIP" {
			names = append(names, name+" did not run")
		}
	}
	if s.current.figure != "" && s.figure == "" {
		names = append(names, "no log of "+s.current.source+" has "+s.current.figure)
	}
	slices.Sort(names)
	if status != "0" || len(names) > 0 || count["PASS"] == 0 {
		return fmt.Sprintf("FAILED (status %s): %s", status, strings.Join(names, ", "))
	}
	if count["SKIP"] > 0 {
		return fmt.Sprintf("%s %d tests, %d skipped%s", passed, count["PASS"], count["SKIP"], s.figure)
	}
	return fmt.Sprintf("%s %d tests%s", passed, count["PASS"], s.figure)
}
