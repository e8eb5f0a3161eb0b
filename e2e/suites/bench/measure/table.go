package measure

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The table of a document stands between two lines like these.
const (
	tableBegin = "<!-- made by make bench-table: begin -->\n"
	tableEnd   = "<!-- made by make bench-table: end -->\n"
)

// WriteTable puts what came of the goals into a Markdown document, in the place of the table that it has. An outcome of
// a goal that is no more is left out.
func (f File) WriteTable(document string, goals []Goal) error {
	f.Goals = slices.DeleteFunc(slices.Clone(f.Goals), func(o Outcome) bool { return !slices.Contains(goals, o.Goal) })
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	before, rest, begun := bytes.Cut(text, []byte(tableBegin))
	_, after, ended := bytes.Cut(rest, []byte(tableEnd))
	if !begun || !ended {
		return errors.New(document + ": has no place for a table")
	}
	return os.WriteFile(document, slices.Concat(before, []byte(tableBegin+f.table()+tableEnd), after), 0o644)
}

func (f File) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nThe last run was %s on %d cores of %s, %.0f GiB, Linux %s, %s.\n",
		f.Time.Format("2006-01-02 15:04 MST"), f.Machine.Cores, f.Machine.CPU, float64(f.Machine.Memory)/(1<<30), f.Machine.Kernel, f.Versions["go"])
	b.WriteString("\n| scenario | figure | measured | goal | |\n|---|---|---|---|---|\n")
	goals := slices.Clone(f.Goals)
	slices.SortStableFunc(goals, func(x, y Outcome) int {
		return cmp.Or(cmp.Compare(number(x.Scenario), number(y.Scenario)), cmp.Compare(alike(x), alike(y)))
	})
	for len(goals) > 0 {
		n := 1
		for n < len(goals) && alike(goals[n]) == alike(goals[0]) {
			n++
		}
		b.WriteString(row(goals[:n]))
		goals = goals[n:]
	}
	b.WriteString("\n")
	return b.String()
}

// alike is the same for goals that share a row: those of a scenario with one bound on one figure of
// results whose names differ before the last word only.
func alike(o Outcome) string {
	return strings.Join([]string{o.Scenario, o.Figure, o.Bound(), lastWord(o.Result)}, " ")
}

func lastWord(result string) string { return result[strings.LastIndexAny(result, "._")+1:] }

// row tells the outcomes of goals that are alike, and which of them were missed.
func row(goals []Outcome) string {
	first, name, met := goals[0], goals[0].Result, "met"
	slices.SortStableFunc(goals, func(x, y Outcome) int { return cmp.Compare(x.Got, y.Got) })
	measured, most := figure(goals[0].Got), figure(goals[len(goals)-1].Got)
	if most != measured {
		measured += " to " + most
	}
	if len(goals) > 1 {
		scenario, _, _ := strings.Cut(name, ".")
		name = scenario + ".*" + lastWord(name)
		met = fmt.Sprintf("all %d met", len(goals))
	}
	var missed []string
	for _, o := range goals {
		if !o.Met {
			missed = append(missed, "`"+o.Result+"`")
		}
	}
	switch {
	case len(goals) > 1 && len(missed) > 0:
		met = fmt.Sprintf("**missed** of %d: %s", len(goals), strings.Join(missed, ", "))
	case len(missed) > 0:
		met = "**missed**"
	}
	return fmt.Sprintf("| %s | `%s` %s | %s | %s | %s |\n", first.Scenario, name, first.Figure, measured, first.Bound(), met)
}

// number is that of a scenario's id.
func number(id string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "B"))
	return n
}

// figure returns three digits of a small figure, and all of a large one.
func figure(f float64) string {
	if f >= 100 || f <= -100 {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'g', 3, 64)
}
