package native

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
)

// The report has each distribution, and the ratio of the medians meets or misses the goal.
func TestTell(t *testing.T) {
	for name, c := range map[string]struct {
		refvol float64
		met    bool
	}{
		"fast": {5, true},
		"slow": {50, false},
	} {
		all := filled(11)
		for i := range all.Refvol {
			all.Refvol[i] = c.refvol
		}
		report := new(measure.Report)
		if err := tell(report, encoded(t, all)); err != nil {
			t.Fatal(err)
		}
		results := map[string]measure.Result{}
		for _, r := range report.Results() {
			results[r.Name] = r
		}
		for result, want := range map[string]float64{
			"native.kubelet_ms": 6000, "native.refvol_ms": c.refvol, "native.floor_ms": 1, "native.answer_ms": 2,
			"native.after_answer_ms": c.refvol - 2,
		} {
			if got := results[result]; got.N != 11 || *got.P50 != want {
				t.Errorf("%s: %s is %+v, want 11, the median %v", name, result, got, want)
			}
		}
		outcomes, err := measure.Check(Goals(), report.Results(), func(string) bool { return true })
		if err != nil || len(outcomes) != 1 {
			t.Fatalf("%s: %v, %v", name, outcomes, err)
		}
		// The kubelet's median is 6 s.
		if got := outcomes[0]; got.Got != 6000/c.refvol || got.Met != c.met {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// A sample that is lost is an error, whichever it is, and so are too few of all.
func TestTellIsIncomplete(t *testing.T) {
	few, lost, text := filled(9), filled(11), []byte("{")
	lost.Refvol = lost.Refvol[1:]
	for name, text := range map[string][]byte{
		"too few": encoded(t, few), "one lost": encoded(t, lost), "none": []byte("{}"), "torn": text,
	} {
		report := new(measure.Report)
		if err := tell(report, text); err == nil || !strings.Contains(err.Error(), "samples of the test") {
			t.Errorf("%s: %v", name, err)
		}
		if got := report.Results(); len(got) > 0 {
			t.Errorf("%s: results %v", name, got)
		}
	}
}

// filled are samples of so many updates, of which the kubelet had the first after a second,
// and so on.
func filled(updates int) samples {
	var all samples
	for i := range updates {
		all.Kubelet = append(all.Kubelet, float64(1000*(i+1)))
		all.Refvol = append(all.Refvol, 1)
		all.Floor = append(all.Floor, 1)
		all.Answer = append(all.Answer, 2)
	}
	return all
}

func encoded(t *testing.T, all samples) []byte {
	t.Helper()
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
