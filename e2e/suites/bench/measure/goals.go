package measure

import "fmt"

// Goal is a bound on one figure of one result.
type Goal struct {
	// Scenario is the id of the scenario that the goal is of, as B1.
	Scenario string `json:"scenario"`
	// Result and Figure name what is bounded: a result, and p50, p99, max or value.
	Result string `json:"result"`
	Figure string `json:"figure"`
	// Most is the largest value that meets the goal; of a goal with Least it is the
	// smallest one.
	Most  float64 `json:"bound"`
	Least bool    `json:"least,omitempty"`
}

// Outcome is what a report says of a goal.
type Outcome struct {
	Goal
	Got float64 `json:"got"`
	Met bool    `json:"met"`
}

// Bound tells the bound of a goal.
func (g Goal) Bound() string {
	if g.Least {
		return fmt.Sprintf(">= %g", g.Most)
	}
	return fmt.Sprintf("<= %g", g.Most)
}

// String tells the outcome in a line.
func (o Outcome) String() string {
	word := "met"
	if !o.Met {
		word = "MISSED"
	}
	return fmt.Sprintf("%-6s %-4s %s %s: %.4g, goal %s", word, o.Scenario, o.Result, o.Figure, o.Got, o.Bound())
}

// Check returns the outcome of each goal whose scenario is one of those that were run; it
// fails if such a goal's result is missing.
func Check(goals []Goal, results []Result, ran func(scenario string) bool) ([]Outcome, error) {
	byName := make(map[string]Result, len(results))
	for _, r := range results {
		byName[r.Name] = r
	}
	var outcomes []Outcome
	for _, g := range goals {
		if !ran(g.Scenario) {
			continue
		}
		r, ok := byName[g.Result]
		if !ok {
			return nil, fmt.Errorf("goal of %s: there is no result %s", g.Scenario, g.Result)
		}
		got, err := r.Figure(g.Figure)
		if err != nil {
			return nil, fmt.Errorf("goal of %s: %w", g.Scenario, err)
		}
		outcomes = append(outcomes, Outcome{Goal: g, Got: got, Met: g.metBy(got)})
	}
	return outcomes, nil
}

func (g Goal) metBy(got float64) bool {
	if g.Least {
		return got >= g.Most
	}
	return got <= g.Most
}
