package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Annotations of an index entry from which the importers take the image's name:
// the first is containerd's, the second the image specification's.
const (
	annotationImageName = "io.containerd.image.name"
	annotationRefName   = "org.opencontainers.image.ref.name"
)

// writeArchive writes images under the name reference to a tar archive, and returns the digest of
// what has the name. A file of that name is replaced in one step.
func writeArchive(output string, images []v1.Image, reference string) (v1.Hash, error) {
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return v1.Hash{}, err
	}
	work, err := os.MkdirTemp(filepath.Dir(output), ".image-")
	if err != nil {
		return v1.Hash{}, err
	}
	defer os.RemoveAll(work)
	dir := filepath.Join(work, "layout")
	digest, err := writeLayout(dir, images, reference)
	if err == nil {
		err = writeTar(filepath.Join(work, "tar"), dir)
	}
	if err == nil {
		err = os.Rename(filepath.Join(work, "tar"), output)
	}
	if err != nil {
		return v1.Hash{}, fmt.Errorf("write %s: %w", output, err)
	}
	return digest, nil
}

// writeLayout makes an image layout, with manifest.json if there is one image.
func writeLayout(dir string, images []v1.Image, reference string) (v1.Hash, error) {
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	var named partial.Describable
	var platform *v1.Platform
	if len(images) == 1 {
		named = images[0]
		if platform, err = platformOf(images[0]); err == nil {
			err = path.WriteImage(images[0])
		}
		if err == nil {
			err = writeDockerManifest(dir, images[0], reference)
		}
	} else {
		var index v1.ImageIndex
		if index, err = indexOf(images); err == nil {
			named, err = index, path.WriteIndex(index)
		}
	}
	if err != nil {
		return v1.Hash{}, err
	}
	descriptor, err := partial.Descriptor(named)
	if err != nil {
		return v1.Hash{}, err
	}
	tag, err := name.NewTag(reference, name.StrictValidation)
	if err != nil {
		return v1.Hash{}, err
	}
	// An artifact type marks what is not an image to run.
	descriptor.ArtifactType, descriptor.Platform = "", platform
	descriptor.Annotations = map[string]string{annotationImageName: reference, annotationRefName: tag.TagStr()}
	return descriptor.Digest, path.AppendDescriptor(*descriptor)
}

func indexOf(images []v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		platform, err := platformOf(image)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	return index, nil
}

func platformOf(image v1.Image) (*v1.Platform, error) {
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	return config.Platform(), nil
}

// writeDockerManifest writes manifest.json, which engines that know no image layout
// read; it names the same blobs.
func writeDockerManifest(dir string, image v1.Image, reference string) error {
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	entry := tarball.Descriptor{Config: blobPath(manifest.Config.Digest), RepoTags: []string{reference}}
	for _, layer := range manifest.Layers {
		entry.Layers = append(entry.Layers, blobPath(layer.Digest))
	}
	text, err := json.Marshal(tarball.Manifest{entry})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o600)
}

func blobPath(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// writeTar writes the files of a directory to an archive, in the order of their names and without a time or an owner.
func writeTar(output, dir string) (err error) {
	file, err := os.Create(output)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	writer := tar.NewWriter(file)
	err = fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			return err
		}
		return writeFile(writer, path, content, 0o644)
	})
	if err != nil {
		return err
	}
	return errors.Join(file.Chmod(0o644), writer.Close())
}
