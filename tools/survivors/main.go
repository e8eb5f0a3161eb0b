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

// mutant is the name of a function, constant or variable of a package, and a kind of mutant in it.
type mutant struct{ name, kind string }

// parseKnown returns how many mutants of a package may survive.
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
	timePart   = regexp.MustCompile(`(\d+) (hour|minute|second|millisecond)`)
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
		if _, err := fmt.Fprintln(out, lines.Text()); err != nil {
			return nil, err
		}
		if found := resultLine.FindStringSubmatch(lines.Text()); found != nil {
			judged, left = number(found[1])+number(found[2]), number(found[3])
		}
		if found := lateLine.FindStringSubmatch(lines.Text()); found != nil {
			late = number(found[1])
		}
		if found := timeLine.FindStringSubmatch(lines.Text()); found != nil {
			took = duration(found[1])
		}
		found := mutantLine.FindStringSubmatch(lines.Text())
		if found == nil {
			continue
		}
		line, err := strconv.Atoi(found[4])
		if err != nil {
			return nil, err
		}
		name, err := nameAt(filepath.Join(dir, filepath.Base(found[3])), line)
		if err != nil {
			return nil, err
		}
		m := mutant{name, found[2]}
		o := tried[m]
		switch found[1] {
		case "LIVED":
			o.lived++
		case "TIMED OUT":
			o.timeouts++
		}
		tried[m] = o
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if judged == 0 {
		return nil, errors.New("the output has no mutant that was killed: did the tests run?")
	}
	if took > 0 && took < time.Duration(judged)*shortest {
		return nil, fmt.Errorf("%d mutants took %s: the tests have not been compiled", judged, took)
	}
	if left > 0 {
		return nil, fmt.Errorf("%d mutants were not tried: did mutant-test.sh run the tests?", left)
	}
	if late > judged/lateShare {
		return nil, fmt.Errorf("timeout: %d mutants, beside %d that were judged: the time limit was too short", late, judged)
	}
	return tried, nil
}

// duration returns the time that a text such as "7 minutes 3 seconds" says.
func duration(text string) (d time.Duration) {
	units := map[string]time.Duration{"hour": time.Hour, "minute": time.Minute, "second": time.Second, "millisecond": time.Millisecond}
	for _, part := range timePart.FindAllStringSubmatch(text, -1) {
		d += time.Duration(number(part[1])) * units[part[2]]
	}
	return d
}

// number returns the value of digits, or 0 if it is too large.
func number(digits string) int {
	n, _ := strconv.Atoi(digits)
	return n
}

// nameAt returns the name of what is declared at a line of a file: "Phrase", "Access.Recheck", "maxAge", or "-" if that is a type or nothing.
func nameAt(file string, line int) (string, error) {
	all, err := parseDeclarations(file)
	if err != nil {
		return "", err
	}
	for _, d := range all {
		if d.first <= line && line <= d.last {
			return d.name, nil
		}
	}
	return "-", nil
}

// declaration is the name of a function, constant or variable, and its lines.
type declaration struct {
	name        string
	first, last int
}

// parseDeclarations returns what a file declares. Constants or variables that are declared together have the name of the first one.
func parseDeclarations(file string) ([]declaration, error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var all []declaration
	add := func(name string, of ast.Node) {
		all = append(all, declaration{name, set.Position(of.Pos()).Line, set.Position(of.End()).Line})
	}
	for _, decl := range parsed.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			add(nameOf(decl), decl)
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

// nameOf returns a function's name, after that of its receiver's type without its pointer and its parameters.
func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	receiver, _, _ := strings.Cut(strings.TrimPrefix(types.ExprString(f.Recv.List[0].Type), "*"), "[")
	return receiver + "." + f.Name.Name
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
	for _, line := range printed {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	return fmt.Errorf("no test notices these mutants:\n%s", strings.Join(unknown, "\n"))
}
