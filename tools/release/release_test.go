package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"sigs.k8s.io/yaml"
)

const (
	testVersion  = "v9.8.7-rc.1"
	testRevision = "0123456789abcdef0123456789abcdef01234567"
)

func prepared(t *testing.T) (*options, string) {
	t.Helper()
	dir := t.TempDir()
	return &options{root: checkout(t), output: dir, version: testVersion, revision: testRevision, programs: programs()}, dir
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	return must(os.ReadFile(filepath.Join(dir, name)))(t)
}

// TestEveryProgramIsReleased compares the list with the directories of the programs.
func TestEveryProgramIsReleased(t *testing.T) {
	var released []string
	for _, p := range programs() {
		released = append(released, p.name)
	}
	slices.Sort(released)
	if commands := namesIn(t, filepath.Join(checkout(t), "cmd")); !slices.Equal(commands, released) {
		t.Errorf("released are %q, cmd/ has %q", released, commands)
	}
}

// TestChartHasTheVersion packs the chart twice: the archives have the same bytes.
func TestChartHasTheVersion(t *testing.T) {
	o, dir := prepared(t)
	const name = "refvol-9.8.7-rc.1.tgz"
	var packed [][]byte
	for range 2 {
		fatal(t, writeChart(o, dir))
		packed = append(packed, read(t, dir, name))
	}
	if !bytes.Equal(packed[0], packed[1]) {
		t.Error("two archives differ")
	}
	files := untar(t, packed[0])
	var got struct {
		Version, AppVersion string
		Annotations         map[string]string
	}
	fatal(t, yaml.Unmarshal(files["refvol/Chart.yaml"], &got))
	if got.Version != "9.8.7-rc.1" || got.AppVersion != testVersion || got.Annotations["artifacthub.io/prerelease"] != "true" {
		t.Errorf("the chart has %+v", got)
	}
	for _, p := range o.programs {
		if image := registry + p.name + ":" + testVersion; !strings.Contains(got.Annotations["artifacthub.io/images"], "image: "+image+"\n") {
			t.Errorf("the chart does not list %s", image)
		}
	}
	for _, name := range []string{"values.yaml", "values.schema.json", "templates/daemonset.yaml", "files/base/daemonset.yaml", "files/components/startup-taint/policy.yaml"} {
		if len(files["refvol/"+name]) == 0 {
			t.Errorf("the archive lacks %s", name)
		}
	}
	for _, name := range []string{"files/base/kustomization.yaml", "files/base/rbac.yaml", "files/components/cache/kustomization.yaml"} {
		if _, there := files["refvol/"+name]; there {
			t.Errorf("the archive has %s, which is kustomize's alone", name)
		}
	}
}

// TestBillNamesWhatIsLinked compares the bill of this test's own binary with what it says itself.
func TestBillNamesWhatIsLinked(t *testing.T) {
	o, dir := prepared(t)
	self := must(os.Executable())(t)
	info := must(buildinfo.ReadFile(self))(t)
	fatal(t, writeBills(o, dir, []binary{{program{name: "tool"}, platform{"linux", "arm64"}, self}}))
	var bill cdx.BOM
	fatal(t, json.Unmarshal(read(t, dir, filepath.Base(self)+".cdx.json"), &bill))
	listed := map[string]bool{}
	for _, c := range *bill.Components {
		listed[c.PackageURL] = true
	}
	for _, dependency := range info.Deps {
		if url := "pkg:golang/" + dependency.Path + "@" + dependency.Version; !listed[url] {
			t.Errorf("the bill lacks %s", url)
		}
	}
	if len(info.Deps) == 0 || len(listed) != len(info.Deps)+1 || !listed["pkg:golang/stdlib@"+strings.TrimPrefix(info.GoVersion, "go")] {
		t.Errorf("the bill has %d components, the binary %d modules", len(listed), len(info.Deps))
	}
	if bill.SerialNumber != "" || bill.Metadata.Timestamp != "" || bill.Metadata.Component.Version != testVersion {
		t.Errorf("the bill says %q, %+v", bill.SerialNumber, bill.Metadata)
	}
	if url := bill.Metadata.Component.PackageURL; !strings.HasSuffix(url, "@"+testVersion+"?goarch=arm64&goos=linux&type=package#cmd/tool") {
		t.Errorf("the bill is of %s", url)
	}
}

// TestKrewManifest checks the rendered manifest and the archives that it names.
func TestKrewManifest(t *testing.T) {
	o, dir := prepared(t)
	var built []binary
	for _, on := range []platform{{"linux", "arm64"}, {"darwin", "amd64"}, {"windows", "amd64"}} {
		b := binary{program{name: "kubectl-refvol", krew: true}, on, filepath.Join(dir, "kubectl-refvol_"+on.String())}
		if on.os == "windows" {
			b.path += ".exe"
		}
		fatal(t, os.WriteFile(b.path, []byte(on.String()), 0o755))
		built = append(built, b)
	}
	fatal(t, writeKrew(o, dir, built))
	var manifest struct {
		Kind     string
		Metadata struct{ Name string }
		Spec     struct {
			Version, ShortDescription string
			Platforms                 []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	fatal(t, yaml.Unmarshal(read(t, dir, "krew.yaml"), &manifest))
	// krew takes descriptions of up to 50 characters.
	if manifest.Kind != "Plugin" || manifest.Metadata.Name != "refvol" || manifest.Spec.Version != testVersion || len(manifest.Spec.ShortDescription) > 50 || len(manifest.Spec.Platforms) != len(built) {
		t.Fatalf("the manifest says %+v", manifest)
	}
	for i, p := range manifest.Spec.Platforms {
		on := built[i].platform
		name := "kubectl-refvol_" + on.String() + ".tar.gz"
		content := read(t, dir, name)
		if want := fmt.Sprintf("%x", sha256.Sum256(content)); p.SHA256 != want || !strings.HasSuffix(p.URI, "/"+testVersion+"/"+name) {
			t.Errorf("%s: %+v, want the sum %s", name, p, want)
		}
		if p.Selector.MatchLabels["os"] != on.os || p.Selector.MatchLabels["arch"] != on.arch {
			t.Errorf("%s is for %v", name, p.Selector)
		}
		files := untar(t, content)
		if names := slices.Sorted(maps.Keys(files)); !slices.Equal(names, []string{"LICENSE", p.Bin, completerName}) || string(files[p.Bin]) != on.String() {
			t.Errorf("%s has %q, the manifest wants %s", name, names, p.Bin)
		}
	}
}

// TestReleaseNeedsItsGo: a binary of an older Go than go.mod's toolchain is refused.
func TestReleaseNeedsItsGo(t *testing.T) {
	self := must(os.Executable())(t)
	root := t.TempDir()
	for _, test := range []struct{ goMod, says string }{
		{"module x\n\ngo 1.26.0\n\ntoolchain " + runtime.Version() + "\n", ""},
		{"module x\n\ngo 1.26.0\n\ntoolchain go1.999.0\n", "is built by " + runtime.Version() + ": a release takes go1.999.0 or newer"},
		{"module x\n\ngo 1.26.0\n", "go.mod names no toolchain"},
	} {
		fatal(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte(test.goMod), 0o600))
		err := (&options{root: root}).checkGo(binary{path: self})
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%q: %v, want %q", test.goMod, err, test.says)
		}
	}
}

func checkout(t *testing.T) string {
	t.Helper()
	return must(filepath.Abs("../.."))(t)
}

func lines(t *testing.T, dir, name string) []string {
	t.Helper()
	return strings.Split(strings.TrimSuffix(string(read(t, dir, name)), "\n"), "\n")
}

func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	var stream io.Reader = bytes.NewReader(archive)
	if bytes.HasPrefix(archive, []byte{0x1f, 0x8b}) {
		stream = must(gzip.NewReader(stream))(t)
	}
	files := map[string][]byte{}
	for reader := tar.NewReader(stream); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		fatal(t, err)
		if files[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
}

// must returns a value, or ends the test because of the error: must(f())(t).
func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		fatal(t, err)
		return value
	}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
