package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestReleaseVerifies makes a release for this architecture, with a small program in the place of each binary, and verifies
// it by the commands of SECURITY.md.
func TestReleaseVerifies(t *testing.T) {
	o, dir := prepared(t)
	on := platform{"linux", runtime.GOARCH}
	small := filepath.Join(t.TempDir(), "small")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", small, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	content, err := os.ReadFile(small)
	if err != nil {
		t.Fatal(err)
	}
	var built []binary
	want := []string{"refvol-" + o.number() + ".tgz", "krew.yaml", "SHA256SUMS"}
	for _, p := range o.programs {
		b := binary{p, on, filepath.Join(dir, p.name+"_"+on.String())}
		if err := os.WriteFile(b.path, content, 0o700); err != nil {
			t.Fatal(err)
		}
		built = append(built, b)
		want = append(want, filepath.Base(b.path), filepath.Base(b.path)+".cdx.json", p.name+"-image.tar")
		if p.krew {
			want = append(want, filepath.Base(b.path)+".tar.gz")
		}
	}
	if err := writeAll(t.Context(), o, dir, built); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, e := range entries {
		files = append(files, e.Name())
	}
	slices.Sort(want)
	if !slices.Equal(files, want) {
		t.Errorf("the release has %q, want %q", files, want)
	}
	verifyAsThePageSays(t, dir, "")
}

// verifyAsThePageSays signs the checksums of a release with a key of its own and runs the commands of SECURITY.md. Commands that need the
// registry, GitHub or Sigstore are only recorded. cosign, if it is a program, verifies the signature of the checksums by the key, or else
// they are compared with what was signed. Then files are changed, and the commands find that.
func verifyAsThePageSays(t *testing.T, dir, cosign string) {
	t.Helper()
	v := &verifier{dir: dir, programs: t.TempDir(), cosign: cosign}
	v.sign(t)
	v.standIns(t)
	_, page, _ := strings.Cut(readRoot(t, "SECURITY.md"), "\n## Verifying a release\n")
	page, _, _ = strings.Cut(page, "\n## ")
	var commands []string
	for _, block := range regexp.MustCompile("(?s)\n```sh\n(.*?)```\n").FindAllStringSubmatch(page, -1) {
		commands = append(commands, block[1])
	}
	if len(commands) == 0 {
		t.Fatal("SECURITY.md has no commands that verify a release")
	}
	version := regexp.MustCompile(`(?m)^VERSION=.*$`)
	if !version.MatchString(commands[0]) {
		t.Fatalf("the first commands name no version:\n%s", commands[0])
	}
	commands[0] = version.ReplaceAllString(commands[0], "VERSION="+testVersion)

	output, err := v.run(t, strings.Join(commands, "\n"))
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); !strings.HasPrefix(name, "SHA256SUMS") && !strings.Contains("\n"+output, "\n"+name+": OK\n") {
			t.Errorf("%s is not verified:\n%s", name, output)
		}
	}
	v.wantCalls(t)

	// The checksums find a changed file. An attacker who also changes the checksums can't sign them.
	files := []string{"refvol-" + testVersion[1:] + ".tgz", "SHA256SUMS"}
	for _, name := range files {
		original := read(t, dir, name)
		changed := append(slices.Clone(original), '\n')
		if err := os.WriteFile(filepath.Join(dir, name), changed, 0o600); err != nil {
			t.Fatal(err)
		}
		output, err := v.run(t, commands[0])
		if compared := strings.Contains(output, ": OK\n"); err == nil || compared != (name != "SHA256SUMS") {
			t.Errorf("%s has changed: %v, and the checksums are compared: %t\n%s", name, err, compared, output)
		}
		if err := os.WriteFile(filepath.Join(dir, name), original, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// verifier runs the commands that verify a release.
type verifier struct {
	// dir has the release, and programs what stands in for others, the key, and the calls.
	dir, programs string
	// cosign is the program, or "".
	cosign string
}

// sign writes the bundle that `cosign sign-blob --key` would write.
func (v *verifier) sign(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signed := read(t, v.dir, "SHA256SUMS")
	digest := sha256.Sum256(signed)
	signature, err := ecdsa.SignASN1(rand.Reader, key, digest[:])
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := json.Marshal(map[string]any{
		"mediaType":            "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": ""}},
		"messageSignature":     map[string]any{"messageDigest": map[string]any{"algorithm": "SHA2_256", "digest": digest[:]}, "signature": signature},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		filepath.Join(v.dir, "SHA256SUMS.sigstore.json"): bundle,
		filepath.Join(v.programs, "signed"):              signed,
		filepath.Join(v.programs, "key.pub"):             pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
	} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// standIns writes the programs that stand in for cosign and gh. They fail if a file that they are given does not exist.
func (v *verifier) standIns(t *testing.T) {
	t.Helper()
	for name, script := range map[string]string{
		"gh": `[[ $3 == oci://* || -f $3 ]]`,
		"cosign": `[ "$1" = verify-blob ] || exit 0
if [ -n "$COSIGN" ]; then
  exec "$COSIGN" verify-blob "$2" "$3" "$4" --key "$PROGRAMS/key.pub" --insecure-ignore-tlog
fi
[ "$3" = --bundle ] && [ -s "$4" ]
exec cmp "$2" "$PROGRAMS/signed"`,
	} {
		script = "#!/bin/bash\nset -euo pipefail\necho \"" + name + " $*\" >>\"$PROGRAMS/calls\"\n" + script + "\n"
		if err := os.WriteFile(filepath.Join(v.programs, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

// run runs a script in the directory of the release.
func (v *verifier) run(t *testing.T, script string) (string, error) {
	t.Helper()
	var output bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", script)
	cmd.Dir, cmd.Stdout, cmd.Stderr = v.dir, &output, &output
	cmd.Env = append(os.Environ(), "PATH="+v.programs+":"+os.Getenv("PATH"), "PROGRAMS="+v.programs, "COSIGN="+v.cosign)
	err := cmd.Run()
	return output.String(), err
}

// wantCalls wants the signature of the checksums verified first, and all images and the chart, each as signed by the workflow of
// the version.
func (v *verifier) wantCalls(t *testing.T) {
	t.Helper()
	calls := lines(t, v.programs, "calls")
	if !strings.HasPrefix(calls[0], "cosign verify-blob SHA256SUMS --bundle SHA256SUMS.sigstore.json ") {
		t.Errorf("first is %s", calls[0])
	}
	want := map[string][]string{"verify": {registry + "charts/refvol:" + testVersion[1:]}}
	for _, p := range programs() {
		for _, command := range []string{"verify", "verify-attestation"} {
			want[command] = append(want[command], registry+p.name+":"+testVersion)
		}
	}
	got := map[string][]string{}
	for _, call := range calls {
		words := strings.Fields(call)
		if words[0] != "cosign" {
			continue
		}
		if !strings.Contains(call, " --certificate-identity https://github.com/refvol/refvol/.github/workflows/release.yml@refs/tags/"+testVersion+" --certificate-oidc-issuer https://token.actions.githubusercontent.com") {
			t.Errorf("%s does not ask who has signed", call)
		}
		for _, word := range words {
			if strings.HasPrefix(word, registry) {
				got[words[1]] = append(got[words[1]], word)
			}
		}
	}
	for _, images := range []map[string][]string{got, want} {
		for command := range images {
			slices.Sort(images[command])
		}
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("verified are %q, want %q", got, want)
	}
}
