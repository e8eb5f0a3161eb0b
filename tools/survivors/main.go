// Command survivors judges the output of a mutation test. Usage:
//
//	gremlins unleash ./pkg/access | survivors pkg/access tools/survivors.txt
//
// It prints the output on, then each mutant that ran into the time limit, each one in the file that was killed, and at last each one that
// survived and is not in the file: its name, its kind, and how many. A mutant that ran into the time limit counts as neither: no test has
// judged it. The command fails because of survivors, if the output has no result, if too many mutants ran into the time limit, or if gremlins
// has not tried some. The file has a line for each name and kind of a mutant, with a count and the reason why no test
// notices it. The name is that of its function, constant or variable and not its line, so that the file holds while code moves.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "survivors:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("usage: survivors PACKAGE FILE < OUTPUT")
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	known, err := parseKnown(string(text), filepath.Base(args[0]))
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	tried, err := parseOutput(in, out, args[0])
	if err != nil {
		return err
	}
	return judge(tried, known, out)
}

// outcome counts what became of the mutants of one name and kind that were tried.
type outcome struct{ lived, timeouts int }

type mutant struct{ name, kind string }

func parseKnown(text, dir string) (map[mutant]int, error) {
	known := map[mutant]int{}
	for i, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(fields) < 5 {
			return nil, fmt.Errorf("line %d: want PACKAGE NAME KIND COUNT REASON", i+1)
		}
		count, err := strconv.Atoi(fields[3])
		if err != nil || count < 1 {
			return nil, fmt.Errorf("line %d: COUNT is no number from 1", i+1)
		}
		if fields[0] == dir {
			known[mutant{fields[1], fields[2]}] += count
		}
	}
	return known, nil
}

var (
	mutantLine = regexp.MustCompile(`^ *(LIVED|KILLED|TIMED OUT) (\w+) at (\S+\.go):(\d+):\d+`)
	resultLine = regexp.MustCompile(`^Killed: ([1-9]\d*), Lived: (\d+), Not covered: (\d+)`)
	lateLine   = regexp.MustCompile(`^Timed out: (\d+)`)
	timeLine   = regexp.MustCompile(`^Mutation testing completed in (.*)`)
)

// lateShare limits how many mutants may take too long: one for each lateShare that were judged. A mutant may loop, and with fake time many
// do. If more take too long, the time limit was too short for the machine, and nothing is known of them.
const lateShare = 2

// shortest is the shortest time for a mutant, which has to be compiled. If they take less, the tests can't be compiled, and all count as killed.
const shortest = 150 * time.Millisecond

// parseOutput copies the output, and returns what became of the mutants that were tried.
func parseOutput(in io.Reader, out io.Writer, dir string) (map[mutant]outcome, error) {
	tried, judged, late, left, took := map[mutant]outcome{}, 0, 0, 0, time.Duration(0)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := lines.Text()
		if _, err := fmt.Fprintln(out, line); err != nil {
			return nil, err
		}
		if found := resultLine.FindStringSubmatch(line); found != nil {
			judged, left = number(found[1])+number(found[2]), number(found[3])
		} else if found := lateLine.FindStringSubmatch(line); found != nil {
			late = number(found[1])
		} else if found := timeLine.FindStringSubmatch(line); found != nil { // such as 7 minutes 3 seconds
			text := strings.NewReplacer("milliseconds", "ms", "millisecond", "ms", "seconds", "s", "second", "s",
				"minutes", "m", "minute", "m", "hours", "h", "hour", "h", " ", "").Replace(found[1])
			took, _ = time.ParseDuration(text)
		} else if found := mutantLine.FindStringSubmatch(line); found != nil {
			all, err := parseDeclarations(filepath.Join(dir, filepath.Base(found[3])))
			if err != nil {
				return nil, err
			}
			m := mutant{nameAt(all, number(found[4])), found[2]}
			o := tried[m]
			switch found[1] {
			case "LIVED":
				o.lived++
			case "TIMED OUT":
				o.timeouts++
			}
			tried[m] = o
		}
	}
	switch err := lines.Err(); {
	case err != nil:
		return nil, err
	case judged == 0:
		return nil, errors.New("the output has no mutant that was killed: did the tests run?")
	case took > 0 && took < time.Duration(judged)*shortest:
		return nil, fmt.Errorf("%d mutants took %s: the tests have not been compiled", judged, took)
	case left > 0:
		return nil, fmt.Errorf("%d mutants were not tried: did mutant-test.sh run the tests?", left)
	case late > judged/lateShare:
		return nil, fmt.Errorf("timeout: %d mutants, beside %d that were judged: the time limit was too short", late, judged)
	}
	return tried, nil
}

func number(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}

// nameAt returns the name of what is declared at a line: "Phrase", "Access.Recheck", "maxAge", or "-" if that is a type or nothing.
func nameAt(all []declaration, line int) string {
	for _, d := range all {
		if d.first <= line && line <= d.last {
			return d.name
		}
	}
	return "-"
}

type declaration struct {
	name        string
	first, last int
}

// parseDeclarations returns the functions, constants and variables of a file. Constants or variables that are declared together have the name
// of the first one, and a method has the name of its receiver's type before its own, without its pointer and its parameters.
func parseDeclarations(file string) (all []declaration, err error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	add := func(name string, of ast.Node) {
		all = append(all, declaration{name, set.Position(of.Pos()).Line, set.Position(of.End()).Line})
	}
	for _, decl := range parsed.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name := decl.Name.Name
			if decl.Recv != nil {
				receiver, _, _ := strings.Cut(strings.TrimPrefix(types.ExprString(decl.Recv.List[0].Type), "*"), "[")
				name = receiver + "." + name
			}
			add(name, decl)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if values, ok := spec.(*ast.ValueSpec); ok {
					add(values.Names[0].Name, values)
				}
			}
		}
	}
	return all, nil
}

// judge prints what ran into the time limit, and what is known but was killed. It fails because of what survived and is not known. What was
// not tried may be in another file than those of this run.
func judge(tried map[mutant]outcome, known map[mutant]int, out io.Writer) error {
	var unknown, printed []string
	for m, o := range tried {
		if o.timeouts > 0 {
			printed = append(printed, fmt.Sprintf("timeout: %s %s: %d, not killed and not survived", m.name, m.kind, o.timeouts))
		}
		if o.lived > known[m] {
			unknown = append(unknown, fmt.Sprintf("%s %s: %d survive, %d known", m.name, m.kind, o.lived, known[m]))
		}
	}
	for m, n := range known {
		if o, found := tried[m]; found && o.lived+o.timeouts < n {
			printed = append(printed, fmt.Sprintf("%s %s: %d survive, %d known: change the file", m.name, m.kind, o.lived, n))
		}
	}
	slices.Sort(printed)
	slices.Sort(unknown)
	_, err := io.WriteString(out, strings.Join(append(printed, ""), "\n"))
	if len(unknown) > 0 {
		err = fmt.Errorf("no test notices these mutants:\n%s", strings.Join(unknown, "\n"))
	}
	return err
}
