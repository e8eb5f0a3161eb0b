// Package release knows the releases of the project by their commits and brings a release's
// sources to a directory, for tests that run it beside the newest. It knows nothing of what is
// built from them.
package release

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

//go:embed releases.txt
var list string

// line is a version and the full commit. A tag may not come with a clone, a commit does.
var line = regexp.MustCompile(`^(v\d+\.\d+\.\d+) ([0-9a-f]{40})$`)

// Release is a version and the commit that it was made of.
type Release struct{ Version, Commit string }

// All returns the releases, oldest first.
func All() ([]Release, error) { return parse(list) }

func parse(text string) ([]Release, error) {
	var all []Release
	for l := range strings.Lines(text) {
		found := line.FindStringSubmatch(strings.TrimSuffix(l, "\n"))
		if found == nil {
			return nil, fmt.Errorf("releases.txt: %q is not a version and a full commit", l)
		}
		all = append(all, Release{Version: found[1], Commit: found[2]})
	}
	return all, nil
}

// Unpack writes the files of the release into dir, which must exist. They come from the history
// of the checkout at repo, which must have the commit: a shallow clone has not.
func (r Release) Unpack(ctx context.Context, repo, dir string) error {
	if err := git(ctx, repo, "cat-file", "-e", r.Commit+"^{commit}"); err != nil {
		return fmt.Errorf("%s lacks the commit %s of %s; in a shallow clone run `git fetch --unshallow`: %w", repo, r.Commit, r.Version, err)
	}
	archive := filepath.Join(dir, ".release.tar")
	if err := git(ctx, repo, "archive", "--format=tar", "--output="+archive, r.Commit); err != nil {
		return err
	}
	if err := run(ctx, "tar", "-C", dir, "-xf", archive); err != nil {
		return err
	}
	return os.Remove(archive)
}

func git(ctx context.Context, repo string, args ...string) error {
	return run(ctx, "git", append([]string{"-C", repo}, args...)...)
}

func run(ctx context.Context, program string, args ...string) error {
	if output, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, output)
	}
	return nil
}
