package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/must"
)

// Whatever ends a part otherwise than well is a failure in the table.
func TestSession(t *testing.T) {
	for name, tc := range map[string]struct {
		tests   []string
		console string
		want    string
	}{
		"all well":            {nil, "--- PASS: TestA (0.1s)\n    --- PASS: TestA/x (0.1s)\n--- PASS: TestB (1s)\nPASS\n@end 0\n", "passed 2 tests"},
		"one skipped":         {nil, "--- PASS: TestA (0.1s)\n--- SKIP: TestB (1s)\nPASS\n@end 0\n", "passed 1 tests, 1 skipped"},
		"lines end with CRLF": {[]string{"TestA"}, "--- PASS: TestA (0.1s)\r\nPASS\r\n@end 0\r\n", "passed 1 tests"},
		"one fails":           {nil, "--- PASS: TestA (0.1s)\n--- FAIL: TestB (1s)\nFAIL\n@end 1\n", "FAILED (status 1): TestB"},
		"a leak at the end":   {nil, "--- PASS: TestA (0.1s)\nFAIL\n@end 1\n", "FAILED (status 1): "},
		"killed":              {nil, "--- PASS: TestA (0.1s)\n@end 137\n", "FAILED (status 137): "},
		"no test":             {nil, "testing: warning: no tests to run\nPASS\n@end 0\n", "FAILED (status 0): "},
		"one is missing":      {[]string{"TestA", "TestB"}, "--- PASS: TestA (0.1s)\nPASS\n@end 0\n", "FAILED (status 0): TestB did not run"},
		"one wanted skips":    {[]string{"TestA", "TestB"}, "--- PASS: TestA (0.1s)\n--- SKIP: TestB (1s)\nPASS\n@end 0\n", "FAILED (status 0): TestB did not run"},
		"the machine stops":   {nil, "--- PASS: TestA (0.1s)\n", "FAILED (it did not end)"},
	} {
		t.Run(name, func(t *testing.T) {
			this := part{name: "this", tests: tc.tests}
			var failures strings.Builder
			s := &session{parts: []part{{name: "other"}, this}, failures: &failures}
			must.Do(t, s.read(strings.NewReader("noise\n@kernel 6.1\n@begin 1\n"+tc.console)))
			if len(s.outcomes) != 1 || s.outcomes[0].result != tc.want || s.outcomes[0].part != "this" || s.outcomes[0].kernel != "6.1" {
				t.Errorf("got %+v, want %q", s.outcomes, tc.want)
			}
			// Whoever reads the output of CI sees why a part failed, and not only that it did.
			if strings.Contains(failures.String(), "---") == strings.HasPrefix(tc.want, passed) && name != "no test" {
				t.Errorf("printed %q", failures.String())
			}
		})
	}
}

// A test that was renamed is missed here, and not only in a machine.
func TestThePlansTestsExist(t *testing.T) {
	for _, k := range must.Get(choose(nil, false))(t) {
		for _, m := range k.machines {
			for _, p := range m.parts {
				var sources strings.Builder
				for _, file := range must.Get(filepath.Glob(filepath.Join("..", "..", "..", p.module, p.pkg, "*_test.go")))(t) {
					sources.Write(must.Get(os.ReadFile(file))(t))
				}
				if sources.Len() == 0 {
					t.Errorf("%s: %s has no tests", p.name, p.pkg)
				}
				for _, name := range p.tests {
					if !strings.Contains(sources.String(), "\nfunc "+name+"(t *testing.T)") {
						t.Errorf("%s: no test of %s is called %s", p.name, p.pkg, name)
					}
				}
			}
		}
	}
}
