package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestChartKnowsEveryFlag: the chart's extraArgs accept the flags of serve and refuse unknown ones. Flags that a value sets are refused
// with a text that names the value.
func TestChartKnowsEveryFlag(t *testing.T) {
	text, err := os.ReadFile("../../deploy/charts/refvol/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			ExtraArgs struct{ Items struct{ Pattern string } }
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var flags []string
	newServeCommand().Flags().VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
	slices.Sort(flags)
	if got, want := schema.Properties.ExtraArgs.Items.Pattern, "^--("+strings.Join(flags, "|")+")(=|$)"; got != want {
		t.Errorf("extraArgs has the pattern\n%s\nwant\n%s", got, want)
	}
}
