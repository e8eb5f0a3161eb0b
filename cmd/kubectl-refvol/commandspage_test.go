package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/kubectl/pkg/cmd/get"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/helppage"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/check"
	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

var update = flag.Bool("update", false, "write this program's part of docs/commands.md anew")

// TestCommandsPage: docs/commands.md shows the help of each command but version. It leaves kubectl's own flags to kubectl, and has flags of several
// commands once.
func TestCommandsPage(t *testing.T) {
	root := newRootCommand()
	var all []*cobra.Command
	for _, cmd := range root.Commands() {
		for _, cmd := range append([]*cobra.Command{cmd}, cmd.Commands()...) {
			if cmd.IsAvailableCommand() && cmd.Name() != "version" {
				all = append(all, cmd)
			}
		}
	}
	hideKubectlFlags(append(all, root))
	shared := sharedFlags(all)
	for _, cmd := range append(all, root) {
		cmd.Example = "" // other documents have examples
	}
	commands := []helppage.Command{{Line: "kubectl refvol", Help: help(t, root)}, {Line: "Flags of several commands", Help: "Flags:\n" + shared.FlagUsages()}}
	for _, cmd := range all {
		var names []string
		shared.VisitAll(func(f *pflag.Flag) {
			if own := cmd.LocalNonPersistentFlags().Lookup(f.Name); own != nil {
				own.Hidden = true
				names = append(names, "--"+f.Name)
			}
		})
		text := help(t, cmd)
		if len(names) > 0 {
			text = strings.TrimSpace(text) + "\n\nFlags of several commands:\n  " + strings.Join(names, " ")
		}
		commands = append(commands, helppage.Command{Line: cmd.CommandPath(), Help: text})
	}
	helppage.Check(t, "../../docs/commands.md", "kubectl-refvol", commands, *update)
}

// hideKubectlFlags removes kubectl's flags for the connection and for output formats from the helps.
func hideKubectlFlags(commands []*cobra.Command) {
	theirs := &cobra.Command{}
	genericclioptions.NewConfigFlags(true).AddFlags(theirs.Flags())
	format := get.NewGetPrintFlags()
	format.JSONYamlPrintFlags.AddFlags(theirs)
	format.TemplateFlags.AddFlags(theirs)
	for _, cmd := range commands {
		hide := func(f *pflag.Flag) {
			if of := theirs.Flags().Lookup(f.Name); of != nil && of.Usage == f.Usage {
				f.Hidden = true
			}
		}
		cmd.Flags().VisitAll(hide)
		cmd.PersistentFlags().VisitAll(hide)
	}
}

// sharedFlags returns the flags that at least three commands have, with the same text wherever the name is a command's.
func sharedFlags(commands []*cobra.Command) *pflag.FlagSet {
	all := map[string][]*pflag.Flag{}
	for _, cmd := range commands {
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { all[f.Name] = append(all[f.Name], f) })
	}
	shared := pflag.NewFlagSet("", pflag.ContinueOnError)
	for name, flags := range all {
		isAnother := func(f *pflag.Flag) bool { return f.Usage != flags[0].Usage }
		if name != "help" && len(flags) >= 3 && !flags[2].Hidden && !slices.ContainsFunc(flags, isAnother) {
			copied := *flags[2]
			shared.AddFlag(&copied)
		}
	}
	return shared
}

// help returns what --help prints, without the flags of all commands and the hint at the help of others.
func help(t *testing.T, cmd *cobra.Command) string {
	t.Helper()
	var b bytes.Buffer
	cmd.SetOut(&b)
	must.Do(t, cmd.Help())
	text, _, _ := strings.Cut(b.String(), "\nGlobal Flags:")
	text, _, _ = strings.Cut(text, "\nUse \"kubectl refvol")
	return text
}

// TestDocumentedCommands parses each kubectl refvol of the documents and of the helps' examples as the program does. A command in a sentence
// may lack arguments.
func TestDocumentedCommands(t *testing.T) {
	lines := doclines.Find(t, "../..", "kubectl", 100)
	root := newRootCommand()
	commands := append(root.Commands(), root)
	for _, cmd := range root.Commands() {
		commands = append(commands, cmd.Commands()...)
	}
	for _, cmd := range commands {
		for _, command := range doclines.Commands(cmd.Example) {
			for _, words := range doclines.Split(command) {
				if words[0] == "kubectl" {
					lines = append(lines, doclines.Line{Document: cmd.CommandPath() + " --help", Args: words})
				}
			}
		}
	}
	for _, line := range lines {
		if line.Args[1] != "refvol" {
			continue
		}
		cmd, rest, err := newRootCommand().Find(line.Args[2:])
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil && !line.IsSpan {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s: %v", &line, err)
		}
	}
}

// TestWhatIsLinked: a go-template may call any exported method, so the linker keeps them all, and the program has 54 MB instead of 32. Kustomize
// would add to that. The test checks what the linker has kept, and not what is imported.
func TestWhatIsLinked(t *testing.T) {
	if os.Getenv("REFVOL_LONG") == "" {
		t.Skip("needs REFVOL_LONG: it compiles the program as it is released")
	}
	program := t.TempDir() + "/kubectl-refvol"
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as released: with cgo, kustomize's plugins keep every method too
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text := string(must.Get(exec.CommandContext(t.Context(), "go", "tool", "nm", program).Output())(t))
	if !strings.Contains(text, " k8s.io/client-go/rest.") {
		t.Fatal("go tool nm says nothing of k8s.io/client-go/rest")
	}
	if strings.Contains(text, " sigs.k8s.io/kustomize/api/krusty.(*Kustomizer).Run") {
		t.Error("kustomize is linked; use kubectl kustomize")
	}
}

// kinds are what a plugin and the commands print as JSON.
func kinds() map[reflect.Type]string {
	return map[reflect.Type]string{
		reflect.TypeFor[status.Report]():     status.Kind,
		reflect.TypeFor[clusterStatus]():     clusterStatusKind,
		reflect.TypeFor[fleet.Result]():      fleet.ResultKind,
		reflect.TypeFor[resultList]():        resultListKind,
		reflect.TypeFor[rolloutList]():       rolloutListKind,
		reflect.TypeFor[check.Report]():      "CheckReport",
		reflect.TypeFor[check.LabelReport](): "LabelReport",
	}
}

// TestSchemas: schemas/ has the JSON schema of each kind, made from its Go type. With -update it is written anew.
func TestSchemas(t *testing.T) {
	all := kinds()
	for root, kind := range all {
		s := schemaMaker{t, map[string]any{}, map[string]reflect.Type{}}
		schema := s.object(root)
		schema["$schema"], schema["title"] = "https://json-schema.org/draft/2020-12/schema", kind
		if len(s.definitions) > 0 {
			schema["$defs"] = s.definitions
		}
		path, text := filepath.Join("../../schemas", kind+".json"), append(must.Get(json.MarshalIndent(schema, "", "  "))(t), '\n')
		if *update {
			must.Do(t, os.WriteFile(path, text, 0o600))
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s is out of date: run make schemas (%v)", path, err)
		}
	}
	files, err := filepath.Glob("../../schemas/*")
	if err != nil || len(files) != len(all) {
		t.Errorf("%q are there, want %d: %v", files, len(all), err)
	}
}

// schemaMaker makes a schema from Go types. Fields that a program does not know are allowed, because later releases may add some.
type schemaMaker struct {
	t           *testing.T
	definitions map[string]any
	types       map[string]reflect.Type
}

func (s *schemaMaker) schema(of reflect.Type) map[string]any {
	basic := map[reflect.Kind]string{reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Int64: "integer"}
	if name := basic[of.Kind()]; name != "" {
		return map[string]any{"type": name}
	}
	switch of.Kind() {
	case reflect.Pointer:
		return s.schema(of.Elem())
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.schema(of.Elem())}
	case reflect.Struct:
		if of == reflect.TypeFor[time.Time]() {
			return map[string]any{"type": "string", "format": "date-time"}
		}
		return map[string]any{"$ref": "#/$defs/" + s.define(of)}
	default:
		s.t.Fatalf("a field has the type %s", of)
		return nil
	}
}

func (s *schemaMaker) define(of reflect.Type) string {
	name := strings.ToUpper(of.Name()[:1]) + of.Name()[1:]
	if other := s.types[name]; other == nil {
		s.types[name] = of
		s.definitions[name] = s.object(of)
	} else if other != of {
		s.t.Fatalf("two types have the name %s", name)
	}
	return name
}

func (s *schemaMaker) object(of reflect.Type) map[string]any {
	properties, required := map[string]any{}, []string{}
	s.addFields(of, properties, &required)
	if kind, ok := kinds()[of]; ok {
		properties["apiVersion"] = map[string]any{"const": status.APIVersion}
		properties["kind"] = map[string]any{"const": kind}
	}
	return map[string]any{"type": "object", "properties": properties, "required": required}
}

func (s *schemaMaker) addFields(of reflect.Type, properties map[string]any, required *[]string) {
	for i := range of.NumField() {
		field := of.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported():
		case field.Anonymous && name == "":
			s.addFields(field.Type, properties, required)
		case name == "":
			s.t.Fatalf("%s.%s has no name in JSON", of, field.Name)
		default:
			properties[name] = s.schema(field.Type)
			if options != "omitempty" {
				*required = append(*required, name)
			}
		}
	}
}
