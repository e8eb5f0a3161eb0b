package main

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// maxBinary bounds the image: it holds nothing but the binary.
const maxBinary = 30 << 20

// TestDockerfileMakesTheSameImage does what the Dockerfile says in a clean directory, with this
// machine's Go in the place of its base image, and compares with what `make image` makes in the
// checkout: the binary byte for byte, and the image's configuration. No container engine takes
// part.
func TestDockerfileMakesTheSameImage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the plugin twice: make verify-dockerfile")
	}
	const version, revision = "v1.2.3", "0123456789abcdef0123456789abcdef01234567"
	root := checkout(t)
	d := newDockerfile(t, root, map[string]string{"VERSION": version, "REVISION": revision})
	work := t.TempDir()
	archive := filepath.Join(work, "image.tar")
	cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", "-C", root, "image",
		"VERSION="+version, "REVISION="+revision, "OUT="+filepath.Join(work, "refvol-plugin"),
		"BINARIES="+filepath.Join(work, "refvol-plugin"), "ARCHIVE="+archive)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	packed := readImage(t, archive)

	got := d.run(t)
	if !maps.EqualFunc(got.files, packed.files, bytes.Equal) {
		t.Errorf("the Dockerfile makes other files: %s, make image: %s", sums(got.files), sums(packed.files))
	} else {
		t.Logf("both make %s", sums(got.files))
	}
	if !reflect.DeepEqual(got.config, packed.config) {
		t.Errorf("the Dockerfile configures %+v, make image %+v", got.config, packed.config)
	}
	checkBinary(t, packed.files)
}

// checkBinary wants one static binary of bounded size, and nothing else: no shell either.
func checkBinary(t *testing.T, files map[string][]byte) {
	t.Helper()
	if names := slices.Sorted(maps.Keys(files)); !slices.Equal(names, []string{"refvol-plugin"}) {
		t.Fatalf("the image has %q, want the binary only", names)
	}
	content := files["refvol-plugin"]
	if len(content) > maxBinary {
		t.Errorf("the binary has %d bytes, want %d at most", len(content), maxBinary)
	}
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, program := range file.Progs {
		if program.Type == elf.PT_INTERP || program.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary has a segment %s: it is linked dynamically", program.Type)
		}
	}
}

// TestDockerfileHasTheModulesGo compares the base image's version of Go with go.mod's.
func TestDockerfileHasTheModulesGo(t *testing.T) {
	root := checkout(t)
	var versions []string
	for file, pattern := range map[string]string{"Dockerfile": `GO_IMAGE=docker\.io/library/golang:(\d+\.\d+)\n`, "go.mod": `\ngo (\d+\.\d+)\.\d+\n`} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s names no version of Go", file)
		}
		versions = append(versions, string(found[1]))
	}
	if versions[0] != versions[1] {
		t.Errorf("go.mod and the Dockerfile have %q", versions)
	}
}

// image is what a Dockerfile or an archive says an image is.
type image struct {
	// files are by their path without the first slash.
	files  map[string][]byte
	config imageConfig
}

type imageConfig struct {
	User       string
	Entrypoint []string
	Labels     map[string]string
}

func sums(files map[string][]byte) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		lines = append(lines, fmt.Sprintf("%s %x", name, sha256.Sum256(files[name])))
	}
	return strings.Join(lines, ", ")
}

// dockerfile is one with two stages: the first builds in a directory of its own, the second takes
// files of it.
type dockerfile struct {
	root   string
	stages []instructions.Stage
	// args are those of the command line.
	args map[string]string
	// ignored is .dockerignore's.
	ignored *patternmatcher.PatternMatcher
}

func newDockerfile(t *testing.T, root string, args map[string]string) *dockerfile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	stages, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(stages) != 2 || stages[1].BaseName != "scratch" {
		t.Fatalf("the Dockerfile has %d stages, and the last is from %s", len(stages), stages[len(stages)-1].BaseName)
	}
	file, err := os.Open(filepath.Join(root, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	patterns, err := ignorefile.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	return &dockerfile{root: root, stages: stages, args: args, ignored: ignored}
}

// run builds the image.
func (d *dockerfile) run(t *testing.T) image {
	t.Helper()
	first := &stage{dockerfile: d, dir: t.TempDir(), env: map[string]string{}}
	for _, command := range d.stages[0].Commands {
		first.do(t, command)
	}
	last := &stage{dockerfile: d, from: first, env: map[string]string{}, made: image{files: map[string][]byte{}, config: imageConfig{Labels: map[string]string{}}}}
	for _, command := range d.stages[1].Commands {
		last.do(t, command)
	}
	return last.made
}

// stage is a stage of a Dockerfile that is being built.
type stage struct {
	*dockerfile
	// dir stands for the root directory of the first stage; the last has from in its place.
	dir     string
	from    *stage
	workdir string
	env     map[string]string
	made    image
}

// do does one command. One that it doesn't know fails the test.
func (s *stage) do(t *testing.T, command instructions.Command) {
	t.Helper()
	switch c := command.(type) {
	case *instructions.ArgCommand:
		for _, arg := range c.Args {
			s.env[arg.Key] = s.args[arg.Key]
			if _, given := s.args[arg.Key]; !given && arg.Value != nil {
				s.env[arg.Key] = *arg.Value
			}
		}
	case *instructions.WorkdirCommand:
		s.workdir = c.Path
		if err := os.MkdirAll(filepath.Join(s.dir, c.Path), 0o755); err != nil {
			t.Fatal(err)
		}
	case *instructions.RunCommand:
		s.runs(t, strings.Join(c.CmdLine, " "))
	case *instructions.CopyCommand:
		s.copies(t, c)
	case *instructions.LabelCommand:
		for _, label := range c.Labels {
			s.made.config.Labels[unquote(label.Key)] = os.Expand(unquote(label.Value), s.getenv)
		}
	case *instructions.UserCommand:
		s.made.config.User = c.User
	case *instructions.EntrypointCommand:
		s.made.config.Entrypoint = c.CmdLine
	default:
		t.Fatalf("the test does not know %s", command.Name())
	}
}

func (s *stage) getenv(name string) string { return s.env[name] }

func unquote(text string) string { return strings.Trim(text, `"`) }

// runs runs a command as a shell of the base image would.
func (s *stage) runs(t *testing.T, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Dir = filepath.Join(s.dir, s.workdir)
	cmd.Env = os.Environ()
	for name, value := range s.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("RUN %s: %v\n%s", script, err, output)
	}
}

// copies copies from the checkout, as far as .dockerignore lets it, or from the first stage.
func (s *stage) copies(t *testing.T, c *instructions.CopyCommand) {
	t.Helper()
	if s.from != nil {
		content, err := os.ReadFile(filepath.Join(s.from.dir, c.SourcePaths[0]))
		if err != nil || len(c.SourcePaths) != 1 {
			t.Fatalf("COPY %q: %v", c.SourcePaths, err)
		}
		s.made.files[strings.TrimPrefix(c.DestPath, "/")] = content
		return
	}
	to := filepath.Join(s.dir, s.workdir, c.DestPath)
	for _, source := range c.SourcePaths {
		from := filepath.Join(s.root, source)
		info, err := os.Stat(from)
		if err != nil {
			t.Fatal(err)
		}
		if ignored, err := s.ignored.MatchesOrParentMatches(source); err != nil || ignored {
			t.Fatalf(".dockerignore leaves out %s: %v", source, err)
		}
		if !info.IsDir() {
			err = copyFile(from, filepath.Join(to, source))
		} else {
			err = os.CopyFS(to, os.DirFS(from))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
