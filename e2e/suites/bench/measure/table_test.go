package measure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWriteTable has goals put into a document, twice.
func TestWriteTable(t *testing.T) {
	document := filepath.Join(t.TempDir(), "document.md")
	text := "before\n" + tableBegin + "old\n" + tableEnd + "after\n"
	if err := os.WriteFile(document, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := File{Goals: []Outcome{
		{Goal: Goal{Scenario: "B10", Result: "cost.watches", Figure: "value", Most: 100, Least: true}, Got: 99},
		{Goal: Goal{Scenario: "B2", Result: "native.ratio", Figure: "value", Most: 1000}, Got: 3456.7, Met: true},
		{Goal: Goal{Scenario: "B12", Result: "recovery.5_start_ratio", Figure: "value", Most: 2}, Got: 2.5},
		{Goal: Goal{Scenario: "B12", Result: "recovery.5_refused", Figure: "value", Most: 2}, Got: 1, Met: true},
		{Goal: Goal{Scenario: "B12", Result: "recovery.10_start_ratio", Figure: "value", Most: 2}, Got: 1.5, Met: true},
		{Goal: Goal{Scenario: "B11", Result: "nodes.one_ratio", Figure: "p99", Most: 2}, Got: 1.5, Met: true},
		{Goal: Goal{Scenario: "B11", Result: "nodes.other_ratio", Figure: "p99", Most: 2}, Got: 0.5, Met: true},
	}}
	var goals []Goal
	for _, o := range f.Goals {
		goals = append(goals, o.Goal)
	}
	f.Goals = append(f.Goals, Outcome{Goal: Goal{Scenario: "B4", Result: "old.ratio", Figure: "value", Most: 1}})
	for range 2 {
		if err := f.WriteTable(document, goals); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"before\n<!--", "-->\nafter\n",
		"| B2 | `native.ratio` value | 3457 | <= 1000 | met |\n| B10 | `cost.watches` value | 99 | >= 100 | **missed** |",
		"| B11 | `nodes.*ratio` p99 | 0.5 to 1.5 | <= 2 | all 2 met |",
		"| B12 | `recovery.*ratio` value | 1.5 to 2.5 | <= 2 | **missed** of 2: `recovery.5_start_ratio` |",
		"| B12 | `recovery.5_refused` value | 1 | <= 2 | met |",
	} {
		if strings.Count(string(got), want) != 1 {
			t.Errorf("%d times %q in\n%s", strings.Count(string(got), want), want, got)
		}
	}
	if strings.Contains(string(got), "old") {
		t.Error("the old table is there")
	}
	if err := f.WriteTable(os.DevNull, goals); err == nil {
		t.Error("a document without a place for a table is taken")
	}
}
