package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
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
	// failures gets what the tests that fail have said.
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

// keptLines are as many as help where a machine ends too early, or a test fails.
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
	err := lines.Err()
	if s.current != nil {
		_, judgeErr := s.judge("unknown")
		err = errors.Join(err, judgeErr)
		s.note("FAILED (it did not end)")
	}
	return err
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
		result, err := s.judge(words[1])
		if err != nil {
			return err
		}
		s.note(result)
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
func (s *session) judge(status string) (string, error) {
	results, err := s.results(status)
	if err != nil {
		return "", err
	}
	count := map[string]int{}
	var names []string
	for name, result := range results {
		if name != "" && !strings.Contains(name, "/") {
			count[result]++
			if result == "fail" {
				names = append(names, name)
			}
		}
	}
	for _, name := range s.current.tests {
		if results[name] == "" || results[name] == "skip" {
			names = append(names, name+" did not run")
		}
	}
	slices.Sort(names)
	if status != "0" || len(names) > 0 || count["pass"] == 0 {
		return fmt.Sprintf("FAILED (status %s): %s", status, strings.Join(names, ", ")), nil
	}
	if count["skip"] > 0 {
		return fmt.Sprintf("%s %d tests, %d skipped", passed, count["pass"], count["skip"]), nil
	}
	return fmt.Sprintf("%s %d tests", passed, count["pass"]), nil
}

// results returns pass, fail or skip of each test of the current part that has ended. It prints the output of the others and of those that
// failed, and what a program that failed has said outside of tests, whose name is "".
func (s *session) results(status string) (map[string]string, error) {
	cmd := exec.Command("go", "tool", "test2json")
	cmd.Stdin = bytes.NewReader(s.output.Bytes())
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	results, said := map[string]string{}, map[string][]string{}
	var tests []string
	for events := json.NewDecoder(bytes.NewReader(text)); ; {
		var e struct{ Action, Test, Output string }
		if err := events.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", cmd, err)
		}
		switch e.Action {
		case "output":
			if said[e.Test] == nil {
				tests = append(tests, e.Test)
			}
			said[e.Test] = append(said[e.Test], e.Output)
		case "pass", "fail", "skip":
			results[e.Test] = e.Action
		}
	}
	for _, test := range tests {
		if result := results[test]; result == "fail" || result == "" || test == "" && status != "0" {
			fmt.Fprint(s.failures, strings.Join(said[test][max(0, len(said[test])-keptLines):], ""))
		}
	}
	return results, nil
}
