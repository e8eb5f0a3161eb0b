package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
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
	content := must(os.ReadFile(small))(t)
	var built []binary
	want := []string{"refvol-" + o.number() + ".tgz", "krew.yaml", "SHA256SUMS"}
	for _, p := range o.programs {
		b := binary{p, on, filepath.Join(dir, p.name+"_"+on.String())}
		fatal(t, os.WriteFile(b.path, content, 0o700))
		built = append(built, b)
		want = append(want, filepath.Base(b.path), filepath.Base(b.path)+".cdx.json", p.name+"-image.tar")
		if p.krew {
			want = append(want, filepath.Base(b.path)+".tar.gz")
		}
	}
	fatal(t, writeAll(t.Context(), o, dir, built))
	slices.Sort(want)
	if files := namesIn(t, dir); !slices.Equal(files, want) {
		t.Errorf("the release has %q, want %q", files, want)
	}
	verifyAsThePageSays(t, dir, "")
}

// verifyAsThePageSays signs the checksums of a release with a key of its own and runs the commands of SECURITY.md. Commands that need the
// registry, GitHub or Sigstore are only recorded. cosign, if it is a program, verifies the signature of the checksums by the key, or else
// they are compared with what was signed. Then files are changed, and the commands find that.
func verifyAsThePageSays(t *testing.T, dir, cosign string) {
	t.Helper()
	// programs has what stands in for others, the key, and the calls.
	programs := t.TempDir()
	sign(t, dir, programs)
	// The stand-ins fail if a file that they are given does not exist.
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
		fatal(t, os.WriteFile(filepath.Join(programs, name), []byte(script), 0o700))
	}
	run := func(script string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "PROGRAMS="+programs, "COSIGN="+cosign)
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	_, page, _ := strings.Cut(readRoot(t, "SECURITY.md"), "\n## Verifying a release\n")
	page, _, _ = strings.Cut(page, "\n## ")
	var commands []string
	for _, block := range regexp.MustCompile("(?s)\n```sh\n(.*?)```\n").FindAllStringSubmatch(page, -1) {
		commands = append(commands, block[1])
	}
	version := regexp.MustCompile(`(?m)^VERSION=.*$`)
	if len(commands) == 0 || !version.MatchString(commands[0]) {
		t.Fatalf("SECURITY.md has no commands that verify a release, or they name no version: %q", commands)
	}
	commands[0] = version.ReplaceAllString(commands[0], "VERSION="+testVersion)

	output, err := run(strings.Join(commands, "\n"))
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for _, name := range namesIn(t, dir) {
		if !strings.HasPrefix(name, "SHA256SUMS") && !strings.Contains("\n"+output, "\n"+name+": OK\n") {
			t.Errorf("%s is not verified:\n%s", name, output)
		}
	}
	wantCalls(t, lines(t, programs, "calls"))

	// The checksums find a changed file. An attacker who also changes the checksums can't sign them.
	for _, name := range []string{"refvol-" + testVersion[1:] + ".tgz", "SHA256SUMS"} {
		original := read(t, dir, name)
		changed := append(slices.Clone(original), '\n')
		fatal(t, os.WriteFile(filepath.Join(dir, name), changed, 0o600))
		output, err := run(commands[0])
		if compared := strings.Contains(output, ": OK\n"); err == nil || compared != (name != "SHA256SUMS") {
			t.Errorf("%s has changed: %v, and the checksums are compared: %t\n%s", name, err, compared, output)
		}
		fatal(t, os.WriteFile(filepath.Join(dir, name), original, 0o600))
	}
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries := must(os.ReadDir(dir))(t)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// sign writes the bundle that `cosign sign-blob --key` would write, and into keys the key and what was signed.
func sign(t *testing.T, dir, keys string) {
	t.Helper()
	signed := read(t, dir, "SHA256SUMS")
	digest := sha256.Sum256(signed)
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	signature, err := ecdsa.SignASN1(rand.Reader, key, digest[:])
	public, wrong := x509.MarshalPKIXPublicKey(key.Public())
	fatal(t, errors.Join(err, wrong))
	bundle, err := json.Marshal(map[string]any{
		"mediaType":            "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": ""}},
		"messageSignature":     map[string]any{"messageDigest": map[string]any{"algorithm": "SHA2_256", "digest": digest[:]}, "signature": signature},
	})
	err = errors.Join(err, write(dir, "SHA256SUMS.sigstore.json", bundle), write(keys, "signed", signed),
		write(keys, "key.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})))
	fatal(t, err)
}

// wantCalls wants the signature of the checksums verified first, and all images and the chart, each as signed by the workflow of
// the version.
func wantCalls(t *testing.T, calls []string) {
	t.Helper()
	if !strings.HasPrefix(calls[0], "cosign verify-blob SHA256SUMS --bundle SHA256SUMS.sigstore.json ") {
		t.Errorf("first is %s", calls[0])
	}
	want := []string{"verify " + registry + "charts/refvol:" + testVersion[1:]}
	for _, p := range programs() {
		want = append(want, "verify "+registry+p.name+":"+testVersion, "verify-attestation "+registry+p.name+":"+testVersion)
	}
	var got []string
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
				got = append(got, words[1]+" "+word)
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("verified are %q, want %q", got, want)
	}
}
